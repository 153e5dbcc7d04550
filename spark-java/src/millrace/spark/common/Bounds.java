package millrace.spark.common;

/** Every bound and every time of the source and of the sink; those of the Python source have the same values. */
public final class Bounds {
    /** A longer range is split, so that the cores of a machine share it. */
    public static final long TASK_ROWS_AIM = 1_000_000;
    /** About one block. Shorter ranges share a task, because a task costs more than reading them. */
    public static final long TASK_ROWS_LEAST = 10_000;
    public static final long TASKS = 10_000;
    /** An answer of a node (about 16 MiB and the rest of a block) fits; one with a huge message has its own. */
    public static final int ROOM_BYTES = 18 << 20;
    /** Rooms that wait for the next task: two for each of so many tasks at once. */
    public static final int ROOMS_KEPT = 16;
    /** An answer larger than this is none of a node. */
    public static final long ANSWER_BYTES = 1L << 30;
    public static final int CLIENTS_KEPT = 8;
    public static final int LOOKUPS = 8;
    public static final int TOPICS_KEPT = 100_000;
    public static final int DESCRIPTIONS_KEPT = 10_000;

    public static final int BLOCK_BODY_BYTES = 257 << 20;
    public static final int BLOCK_MESSAGES = 10_000;
    public static final int STRING_BYTES = 65_535;
    public static final int USER_PROPERTIES = 1_000;
    /** The length of a PUBLISH packet without its head. */
    public static final long PACKET_BYTES = 268_435_455;

    /** What a shard gets as one block: head, columns, dictionaries and key take their part of 1 MiB. */
    public static final int SECTION_BYTES = (1 << 20) - 64 * 1024;
    public static final int SECTION_ROW_BYTES = 32;
    public static final int REQUEST_BYTES = 6 << 20;
    public static final int REQUEST_SECTIONS = 64;

    public static final double CONNECT_S = 2.5;
    /** How long a node may stay silent while another one is left to ask; and when no other is left. */
    public static final double READ_SWITCH_S = 3.0;
    public static final double READ_ANSWER_S = 30.0;
    public static final double READ_PATIENCE_S = 10.0;
    /** A request to stage is answered once a majority has it on disk, which takes longer than a read. */
    public static final double WRITE_SWITCH_S = 5.0;
    public static final double WRITE_ANSWER_S = 45.0;
    public static final double WRITE_PATIENCE_S = 60.0;
    /** To give up what was staged is not worth more. */
    public static final double GIVE_UP_PATIENCE_S = 5.0;
    public static final double PAUSE_S_LEAST = 0.05;
    public static final double PAUSE_S_MOST = 1.0;
    public static final double SILENT_S_LEAST = 10.0;
    public static final double SILENT_S_MOST = 60.0;
    public static final double TRIGGER_DELAY_S = 900.0;

    private Bounds() {}
}

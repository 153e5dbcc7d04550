package millrace.spark.source;

import java.util.ArrayDeque;
import millrace.spark.common.Bounds;

/**
 * Memory for two answers in turn. It stays with the process from task to task, because the first touch of memory costs
 * more than what is then done with it. A small task has none: its answers have memory of their own.
 */
final class Rooms {
    private static final ArrayDeque<byte[]> SPARE = new ArrayDeque<>();

    private final boolean isSmall;
    private final ArrayDeque<byte[]> mine = new ArrayDeque<>();

    Rooms(boolean isSmall) {
        this.isSmall = isSmall;
    }

    /** The one that was not taken last. */
    byte[] next() {
        if (isSmall) {
            return null;
        }
        byte[] room;
        if (mine.size() == 2) {
            room = mine.pollFirst();
        } else {
            synchronized (SPARE) {
                room = SPARE.pollLast();
            }
            room = room == null ? new byte[Bounds.ROOM_BYTES] : room;
        }
        mine.addLast(room);
        return room;
    }

    /** Nothing is fetched any more, and no row needs what is in them. */
    void giveBack() {
        synchronized (SPARE) {
            while (!mine.isEmpty()) {
                byte[] room = mine.poll();
                if (SPARE.size() < Bounds.ROOMS_KEPT) {
                    SPARE.addLast(room);
                }
            }
        }
    }
}

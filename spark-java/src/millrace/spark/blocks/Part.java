package millrace.spark.blocks;

import java.util.Arrays;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;

/**
 * The chosen rows of one block, and where its columns are. Vectors look through it, so one serves for all blocks of
 * a task in turn; the bytes are those of the answer, or those that were expanded.
 */
public final class Part {
    private static final int PLAIN_HEAD_BYTES = 24;
    private static final int ATTRIBUTES = 1;
    private static final int NO_NAME = -1;

    Header header;
    byte[] data;
    Dictionary topics = Dictionary.EMPTY;
    Dictionary names = Dictionary.EMPTY;
    int topicIds;
    int deltas;
    int packetPositions;
    int payloadPositions;
    int payloadSizes;
    int flags;
    /** -1 where the block has no such column. */
    int publisherIds;

    int packets;
    int packetsEnd;
    private int[] rows;
    private int first;
    private int count;
    private long number;

    private final Inflater inflater = new Inflater();
    private byte[] expanded = new byte[0];
    private byte[] dictionary = new byte[0];
    private boolean[] wanted;

    /** How many rows are chosen. */
    public int count() {
        return count;
    }

    /** Which of the blocks that it has looked at. */
    long number() {
        return number;
    }

    /** The place of a chosen row in the block. */
    int row(int chosen) {
        return rows == null ? first + chosen : rows[chosen];
    }

    /** Look at a block whose checksums were proved, and choose its rows; whether there are any. */
    boolean choose(Header of, byte[] answer, int body, Choice choice) {
        header = of;
        number++;
        readTopics(answer, body, choice);
        if (wanted != null && !anyOf(wanted)) {
            return false;
        }
        readColumns(answer, body);
        first = (int) Math.max(0, choice.start() - header.baseOffset());
        count = (int) Math.min(header.count(), choice.end() - header.baseOffset()) - first;
        rows = null;
        if (wanted != null || choice.isTimed()) {
            select(choice);
        }
        return count > 0;
    }

    private void select(Choice choice) {
        int[] chosen = new int[count];
        int found = 0;
        for (int row = first; row < first + count; row++) {
            long timeUs = timeUs(row);
            if ((wanted == null || wanted[topicId(row)]) && timeUs >= choice.fromUs() && timeUs <= choice.untilUs()) {
                chosen[found++] = row;
            }
        }
        rows = chosen;
        count = found;
    }

    int topicId(int row) {
        int id = Bytes.i32(data, topicIds + 4 * row);
        if (id < 0 || id >= topics.count) {
            throw new BlockDamaged("a word of a block is not in its dictionary");
        }
        return id;
    }

    long timeUs(int row) {
        return header.baseTimeUs() + Bytes.u32(data, deltas + 4 * row);
    }

    /** -1 where the message has no publisher. */
    int publisherId(int row) {
        return publisherIds < 0 ? NO_NAME : Bytes.i32(data, publisherIds + 4 * row);
    }

    int flags(int row) {
        return data[flags + row];
    }

    /** Where the payload of a row begins. */
    int payloadAt(int row) {
        long at = packets + Bytes.u32(data, payloadPositions + 4 * row);
        if (at + Bytes.u32(data, payloadSizes + 4 * row) > packetsEnd) {
            throw new BlockDamaged("the columns of a block do not fit its packets");
        }
        return (int) at;
    }

    int payloadBytes(int row) {
        return Bytes.i32(data, payloadSizes + 4 * row);
    }

    /** Devices that publish in turn make blocks with one dictionary, which is looked at once. */
    private void readTopics(byte[] answer, int body, Choice choice) {
        int end = body + header.plainBytes();
        if (header.plainBytes() < PLAIN_HEAD_BYTES) {
            throw new BlockDamaged("the plain part is shorter than its head");
        }
        int at = body + PLAIN_HEAD_BYTES;
        if (header.topics() == topics.count && Arrays.equals(answer, at, end, dictionary, 0, dictionary.length)) {
            return;
        }
        // A copy: the words outlive the room of this answer.
        dictionary = Arrays.copyOfRange(answer, at, end);
        topics = Dictionary.EMPTY;
        Dictionary read =
                Dictionary.read(dictionary, 0, dictionary.length, header.topics(), Bytes.u32(answer, body));
        if (read.endOfText() != dictionary.length) {
            throw new BlockDamaged("the plain part is longer than its dictionary");
        }
        wanted = choice.takes() == null ? null : new boolean[read.count];
        boolean isAll = true;
        for (int id = 0; wanted != null && id < read.count; id++) {
            wanted[id] = choice.takes().test(read.word(id).toString());
            isAll &= wanted[id];
        }
        wanted = isAll ? null : wanted;
        topics = read;
    }

    private static boolean anyOf(boolean[] flags) {
        for (boolean one : flags) {
            if (one) {
                return true;
            }
        }
        return false;
    }

    /** Where the columns are; a section that does not fit is damage, the elements are looked at when asked for. */
    private void readColumns(byte[] answer, int body) {
        long nameCount = Bytes.u32(answer, body + 4);
        long nameBytes = Bytes.u32(answer, body + 8);
        long packetBytes = Bytes.u32(answer, body + 12);
        boolean hasAttributes = (Bytes.i32(answer, body + 16) & ATTRIBUTES) != 0;
        long keyBytes = Bytes.u32(answer, body + 20);
        int start = body + header.plainBytes();
        long room = header.bodyBytes() - header.plainBytes();
        if (header.codec() == Header.ZLIB) {
            expand(answer, start, (int) room);
            start = 0;
        } else if (header.rawBytes() > room) {
            throw new BlockDamaged("the body of block " + header.index() + " does not fit: it is too short");
        } else {
            data = answer;
        }
        int end = start + header.rawBytes();
        long wide = Bytes.aligned(4L * header.count());
        long at = start + 6 * wide + Bytes.aligned(header.count()) + Bytes.aligned(keyBytes);
        long publishers = at;
        names = Dictionary.EMPTY;
        if (hasAttributes) {
            at += 2 * wide + 8L * header.count();
            if (at > end || nameCount > end) {
                throw new BlockDamaged("the columns of block " + header.index() + " do not fit");
            }
            names = Dictionary.read(data, (int) at, end, (int) nameCount, nameBytes);
            at = names.endOfText();
        }
        if (at + packetBytes != end) {
            throw new BlockDamaged("the columns and packets of block " + header.index() + " are " + header.rawBytes()
                    + " bytes, not " + (at + packetBytes - start));
        }
        topicIds = start;
        deltas = (int) (start + wide);
        packetPositions = (int) (start + 2 * wide);
        payloadPositions = (int) (start + 4 * wide);
        payloadSizes = (int) (start + 5 * wide);
        flags = (int) (start + 6 * wide);
        publisherIds = hasAttributes ? (int) publishers : -1;
        packets = (int) at;
        packetsEnd = end;
    }

    private void expand(byte[] answer, int at, int length) {
        int raw = header.rawBytes();
        if (expanded.length < raw + 1) {
            // One byte more than promised is enough to know that the promise is false.
            expanded = new byte[raw + 1];
        }
        inflater.reset();
        inflater.setInput(answer, at, length);
        int found = 0;
        try {
            while (found <= raw && !inflater.finished()) {
                int count = inflater.inflate(expanded, found, raw + 1 - found);
                if (count == 0) {
                    break;
                }
                found += count;
            }
        } catch (DataFormatException error) {
            throw new BlockDamaged("the body of block " + header.index() + " cannot be expanded: " + error.getMessage());
        }
        if (found != raw || !inflater.finished()) {
            throw new BlockDamaged("the body of block " + header.index() + " expands to another length");
        }
        data = expanded;
    }

    public void close() {
        inflater.end();
    }
}

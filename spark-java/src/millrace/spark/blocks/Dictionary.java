package millrace.spark.blocks;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * Words that a block has once and its messages name by number. The words are views of the block; a word that no row
 * has is never made.
 */
final class Dictionary {
    static final Dictionary EMPTY = new Dictionary(new byte[0], 0, 0, new int[] {0});

    final int count;
    private final byte[] data;
    private final int textAt;
    private final int[] edges;
    private final UTF8String[] words;

    private Dictionary(byte[] data, int count, int textAt, int[] edges) {
        this.data = data;
        this.count = count;
        this.textAt = textAt;
        this.edges = edges;
        this.words = new UTF8String[count];
    }

    /** The words between these places, in so many bytes of text; BlockDamaged where that does not fit. */
    static Dictionary read(byte[] data, int at, int end, int count, long textBytes) {
        long textAt = at + Bytes.aligned(4L * (count + 1L));
        if (count < 0 || textBytes > end || textAt + Bytes.aligned(textBytes) > end) {
            throw new BlockDamaged("a dictionary reaches over its block");
        }
        int[] edges = new int[count + 1];
        int before = 0;
        for (int word = 0; word <= count; word++) {
            int edge = Bytes.i32(data, at + 4 * word);
            if (edge < before || edge > textBytes || (word == 0 && edge != 0)) {
                throw new BlockDamaged("the edges of a dictionary do not fit its text");
            }
            // A character that reached over an edge would be none in either word.
            if (edge < textBytes && (data[(int) textAt + edge] & 0xC0) == 0x80) {
                throw new BlockDamaged("a word of a block is not UTF-8");
            }
            edges[word] = edge;
            before = edge;
        }
        // The door took only UTF-8 (MQTT 5, 1.5.4); proved once more for a whole dictionary.
        if (before != textBytes || !UTF8String.fromBytes(data, (int) textAt, (int) textBytes).isValid()) {
            throw new BlockDamaged("a word of a block is not UTF-8, or its dictionary has more text than words");
        }
        return new Dictionary(data, count, (int) textAt, edges);
    }

    long endOfText() {
        return textAt + Bytes.aligned(edges[count]);
    }

    UTF8String word(int id) {
        if (id < 0 || id >= count) {
            throw new BlockDamaged("a word of a block is not in its dictionary");
        }
        UTF8String word = words[id];
        if (word == null) {
            word = UTF8String.fromBytes(data, textAt + edges[id], edges[id + 1] - edges[id]);
            words[id] = word;
        }
        return word;
    }
}

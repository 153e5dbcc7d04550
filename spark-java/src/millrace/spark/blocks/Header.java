package millrace.spark.blocks;

import millrace.spark.common.Bounds;

/** The fields of the head of a block that a reader needs; docs/understand/format.md draws the bytes. */
record Header(
        int kind,
        int codec,
        int bodyBytes,
        int plainBytes,
        int rawBytes,
        int count,
        int topics,
        long shard,
        long index,
        long baseOffset,
        long baseTimeUs,
        long bodyChecksum) {
    static final int BYTES = 96;
    static final int DATA = 0;
    static final int ZLIB = 1;
    private static final int MAGIC = 0x4B42524D;
    private static final int VERSION = 1;
    private static final int KINDS = 4;
    private static final int REFERENCE = 2;

    /** The head at this place; BlockDamaged if it is not one. */
    static Header parse(byte[] data, int at, int end) {
        if (end - at < BYTES) {
            throw new BlockDamaged((end - at) + " bytes are too few for a block");
        }
        if (Bytes.i32(data, at) != MAGIC) {
            throw new BlockDamaged("no block starts here");
        }
        if (Bytes.crc32c(data, at, BYTES - 4) != Bytes.u32(data, at + BYTES - 4)) {
            throw new BlockDamaged("the checksum of the head does not fit");
        }
        int version = Bytes.i32(data, at + 4) & 0xFFFF;
        if (version > VERSION) {
            throw new BlockDamaged("a block has version " + version + "; this Millrace reads up to " + VERSION);
        }
        int kind = data[at + 6] & 0xFF;
        int codec = data[at + 7] & 0xFF;
        if (kind >= KINDS || codec > REFERENCE) {
            throw new BlockDamaged("a block has an unknown kind or codec: " + kind + ", " + codec);
        }
        if (codec == REFERENCE) {
            throw new BlockDamaged("a reference outside of a segment");
        }
        long body = Bytes.u32(data, at + 8);
        long plain = Bytes.u32(data, at + 12);
        long raw = Bytes.u32(data, at + 16);
        long count = Bytes.u32(data, at + 20);
        long topics = Bytes.u32(data, at + 24);
        boolean isLarge = body > Bounds.BLOCK_BODY_BYTES || raw > Bounds.BLOCK_BODY_BYTES;
        if (isLarge || plain > body || count > Bounds.BLOCK_BODY_BYTES || topics > Bounds.BLOCK_BODY_BYTES) {
            throw new BlockDamaged("the lengths in the head do not fit");
        }
        return new Header(
                kind,
                codec,
                (int) body,
                (int) plain,
                (int) raw,
                (int) count,
                (int) topics,
                Bytes.u32(data, at + 28),
                Bytes.i64(data, at + 40),
                Bytes.i64(data, at + 56),
                Bytes.i64(data, at + 64),
                Bytes.u32(data, at + 88));
    }

    long nextOffset() {
        return baseOffset + count;
    }

    /** BlockDamaged unless the body behind this head is the one that it describes. */
    void check(byte[] data, int at, int end) {
        if (end - at < bodyBytes) {
            throw new BlockDamaged((end - at) + " bytes of body instead of " + bodyBytes);
        }
        if (Bytes.crc32c(data, at, bodyBytes) != bodyChecksum) {
            throw new BlockDamaged("the checksum of the body of block " + index + " does not fit");
        }
    }
}

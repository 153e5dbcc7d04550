package millrace.spark.blocks;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/** Little-endian numbers in an array, each look with its bounds proved by the JVM. */
final class Bytes {
    private static final VarHandle INTS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private Bytes() {}

    static int i32(byte[] data, int at) {
        return (int) INTS.get(data, at);
    }

    static long u32(byte[] data, int at) {
        return i32(data, at) & 0xFFFF_FFFFL;
    }

    static long i64(byte[] data, int at) {
        return (long) LONGS.get(data, at);
    }

    static int u16big(byte[] data, int at) {
        return (data[at] & 0xFF) << 8 | data[at + 1] & 0xFF;
    }

    static long aligned(long size) {
        return size + 7 & ~7L;
    }

    static long crc32c(byte[] data, int at, int length) {
        CRC32C sum = new CRC32C();
        sum.update(data, at, length);
        return sum.getValue();
    }
}

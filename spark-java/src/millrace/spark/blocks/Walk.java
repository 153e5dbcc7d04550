package millrace.spark.blocks;

/** The blocks of one answer in turn, each proved by its checksums before a row of it is shown. */
public final class Walk {
    private final byte[] data;
    private final int end;
    private final Choice choice;
    private int position;

    public Walk(byte[] data, int length, Choice choice) {
        this.data = data;
        this.end = length;
        this.choice = choice;
    }

    /** Go to the next block that has wanted rows; false where there is none left. */
    public boolean next(Part part) {
        while (position < end) {
            Header header = Header.parse(data, position, end);
            int body = position + Header.BYTES;
            boolean isInside = header.baseOffset() < choice.end() && header.nextOffset() > choice.start();
            boolean isWanted = header.kind() == Header.DATA && isInside && header.baseTimeUs() <= choice.untilUs();
            position = (int) Math.min((long) body + header.bodyBytes(), Integer.MAX_VALUE);
            if (isWanted) {
                header.check(data, body, end);
                if (part.choose(header, data, body, choice)) {
                    return true;
                }
            }
        }
        return false;
    }
}

package millrace.spark.common;

import java.util.Collection;

/** Words in sentences for people. */
public final class Words {
    private static final double NEAR_LEAST = 0.6;

    private Words() {}

    /** In quotes, as the errors of the Python source have it. */
    public static String quoted(String text) {
        char quote = text.indexOf('\'') >= 0 && text.indexOf('"') < 0 ? '"' : '\'';
        StringBuilder out = new StringBuilder().append(quote);
        for (char one : text.toCharArray()) {
            if (one == '\n') {
                out.append("\\n");
            } else if (one == '\\' || one == quote) {
                out.append('\\').append(one);
            } else {
                out.append(one);
            }
        }
        return out.append(quote).toString();
    }

    /** The known word that is most like this one; null where none is. */
    public static String nearest(String word, Collection<String> known) {
        String best = null;
        double most = NEAR_LEAST;
        for (String one : known) {
            double likeness = 2.0 * common(word, one) / (word.length() + one.length());
            if (likeness > most || (likeness == most && best == null)) {
                best = one;
                most = likeness;
            }
        }
        return best;
    }

    /** How many letters they share: the longest piece that is in both, and those on both sides of it. */
    private static int common(String one, String two) {
        int length = 0;
        int at = 0;
        int other = 0;
        for (int i = 0; i < one.length(); i++) {
            for (int j = 0; j < two.length(); j++) {
                int n = 0;
                while (i + n < one.length() && j + n < two.length() && one.charAt(i + n) == two.charAt(j + n)) {
                    n++;
                }
                if (n > length) {
                    length = n;
                    at = i;
                    other = j;
                }
            }
        }
        if (length == 0) {
            return 0;
        }
        return length
                + common(one.substring(0, at), two.substring(0, other))
                + common(one.substring(at + length), two.substring(other + length));
    }
}

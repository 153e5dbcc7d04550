package millrace.spark.options;

import java.time.DateTimeException;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Times as people write them (ISO 8601), in microseconds since 1970; a time without a zone is UTC. */
final class Moments {
    private static final Pattern SHAPE = Pattern.compile("(\\d{4})-?(\\d{2})-?(\\d{2})"
            + "(?:[T ](\\d{2})(?::?(\\d{2})(?::?(\\d{2})(?:[.,](\\d{1,9}))?)?)?"
            + "(Z|z|[+-]\\d{2}(?::?\\d{2}(?::?\\d{2})?)?)?)?");

    private Moments() {}

    /** Null where the text is no time. */
    static Long parse(String text) {
        Matcher found = SHAPE.matcher(text);
        if (!found.matches()) {
            return null;
        }
        try {
            LocalDateTime moment = LocalDateTime.of(
                    part(found, 1), part(found, 2), part(found, 3), part(found, 4), part(found, 5), part(found, 6));
            String fraction = found.group(7) == null ? "" : found.group(7);
            long us = Long.parseLong((fraction + "000000").substring(0, 6));
            return moment.toEpochSecond(zone(found.group(8))) * 1_000_000 + us;
        } catch (DateTimeException error) {
            return null;
        }
    }

    private static int part(Matcher found, int group) {
        return found.group(group) == null ? 0 : Integer.parseInt(found.group(group));
    }

    private static ZoneOffset zone(String text) {
        return text == null || text.equalsIgnoreCase("z") ? ZoneOffset.UTC : ZoneOffset.of(text);
    }
}

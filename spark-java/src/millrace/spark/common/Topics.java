package millrace.spark.common;

import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/** Topics and topic filters of MQTT. */
public final class Topics {
    private Topics() {}

    /** Whether the text is a topic filter at all (MQTT 5, 1.5.4, 4.7.1 and 4.7.3). */
    public static boolean isFilter(String filter) {
        int size;
        try {
            size = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(filter)).remaining();
        } catch (CharacterCodingException error) {
            return false;
        }
        if (size == 0 || size > Bounds.STRING_BYTES || filter.indexOf('\0') >= 0) {
            return false;
        }
        String[] levels = levels(filter);
        for (int at = 0; at < levels.length; at++) {
            String level = levels[at];
            boolean isRest = level.equals("#");
            if (isRest && at < levels.length - 1) {
                return false;
            }
            if (!isRest && !level.equals("+") && hasWildcard(level)) {
                return false;
            }
        }
        return true;
    }

    public static boolean isTopic(String topic) {
        return isFilter(topic) && !hasWildcard(topic) && !topic.startsWith("$");
    }

    private static boolean hasWildcard(String text) {
        return text.indexOf('+') >= 0 || text.indexOf('#') >= 0;
    }

    public static String[] levels(String topic) {
        return topic.split("/", -1);
    }

    /** Whether the topic is in the filter's set. */
    public static boolean matches(String[] filter, String[] topic) {
        if (topic[0].startsWith("$") && (filter[0].equals("+") || filter[0].equals("#"))) {
            return false;
        }
        for (int at = 0; at < filter.length; at++) {
            String level = filter[at];
            if (level.equals("#")) {
                return true;
            }
            if (at == topic.length || !(level.equals("+") || level.equals(topic[at]))) {
                return false;
            }
        }
        return filter.length == topic.length;
    }
}

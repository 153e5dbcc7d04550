package millrace.spark.http;

import java.io.Serializable;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The address of a node, and the user who asks it, or null. */
public record Address(String url, String user, boolean hasPassword) implements Serializable {
    private static final Pattern SHAPE =
            Pattern.compile("(https?)://(?:([^@/?#]*)@)?((?:\\[[^\\]]+\\]|[A-Za-z0-9.-]+)(?::\\d{1,5})?)(/[^?#]*)?");

    /** Null where the text is no address. */
    public static Address parse(String text) {
        Matcher found = SHAPE.matcher(text);
        if (!found.matches()) {
            return null;
        }
        String path = found.group(4) == null ? "" : found.group(4).replaceAll("/+$", "");
        String given = found.group(2);
        String user = given == null ? null : given.replaceFirst(":.*", "");
        return new Address(
                found.group(1) + "://" + found.group(3) + path,
                user == null ? null : URLDecoder.decode(user.replace("+", "%2B"), StandardCharsets.UTF_8),
                given != null && given.contains(":"));
    }

    /** The address with this user, unless it names one. */
    public Address as(String name) {
        return user == null ? new Address(url, name, false) : this;
    }

    /** A part of a path or a value of a query. */
    public static String quoted(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }
}

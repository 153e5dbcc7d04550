package millrace.spark.options;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Words;

/** The options that somebody gave, under their own names in small letters, without what Spark added. */
final class Given {
    private static final Pattern DURATION = Pattern.compile("(\\d+(?:\\.\\d+)?)\\s*(ms|s|m|min|h|d)");
    private static final Map<String, Double> UNITS_S =
            Map.of("ms", 0.001, "s", 1.0, "m", 60.0, "min", 60.0, "h", 3_600.0, "d", 86_400.0);
    private static final Pattern NUMBER = Pattern.compile("[0-9]{1,18}");
    /** What Spark adds by itself when a table is created in its catalog. */
    private static final Set<String> CATALOG_NAMES =
            Set.of("provider", "owner", "location", "comment", "external", "is_managed_location", "collation");

    private final Map<String, String> values = new LinkedHashMap<>();

    /** ConfigError for an option that does not exist, and for one that is there under two names. */
    Given(Map<String, String> given, List<String> names, Map<String, String> aliases) {
        Map<String, String> known = new LinkedHashMap<>();
        names.forEach(name -> known.put(lower(name), name));
        Map<String, String> meanings = new LinkedHashMap<>();
        known.keySet().forEach(name -> meanings.put(name, name));
        aliases.forEach((alias, name) -> meanings.put(lower(alias), lower(name)));
        boolean isTable = given.keySet().stream().anyMatch(name -> name.equalsIgnoreCase("provider"));
        given.forEach((original, value) -> {
            String name = lower(original);
            boolean isOfSpark = name.startsWith("spark.") || name.startsWith("__") || name.startsWith("option.");
            if (isOfSpark || (isTable && CATALOG_NAMES.contains(name))) {
                return;
            }
            if (isTable) {
                throw new ConfigError(Sentences.NO_TABLE);
            }
            String meaning = meanings.get(name);
            if (meaning == null) {
                throw new ConfigError(unknown(original, known));
            }
            if (values.putIfAbsent(meaning, value) != null) {
                throw new ConfigError("option " + Words.quoted(known.get(meaning))
                        + " is given twice, the second time as " + Words.quoted(original));
            }
        });
    }

    private static String unknown(String original, Map<String, String> known) {
        String name = lower(original);
        String why = Sentences.NOT_HERE.get(name);
        if (why != null) {
            return "option " + Words.quoted(original) + ": " + why;
        }
        String near = Words.nearest(name, known.keySet());
        String hint = near == null
                ? "there are " + String.join(", ", known.values())
                : "did you mean " + Words.quoted(known.get(near)) + "?";
        return "there is no option " + Words.quoted(original) + "; " + hint;
    }

    static String lower(String name) {
        return name.toLowerCase(Locale.ROOT);
    }

    boolean has(String name) {
        return values.containsKey(lower(name));
    }

    /** Null where it was not given. */
    String text(String name) {
        return values.get(lower(name));
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(lower(name), otherwise);
    }

    Long number(String name) {
        String text = text(name);
        if (text == null) {
            return null;
        }
        if (!NUMBER.matcher(text).matches() || Long.parseLong(text) < 1) {
            throw new ConfigError(name + " = " + Words.quoted(text) + " is not a number above 0");
        }
        return Long.valueOf(text);
    }

    boolean toggle(String name, boolean otherwise) {
        String text = lower(text(name, String.valueOf(otherwise)));
        if (!text.equals("true") && !text.equals("false")) {
            throw new ConfigError(name + " = " + Words.quoted(text) + " is not true or false");
        }
        return text.equals("true");
    }

    Double seconds(String name) {
        String text = text(name);
        if (text == null) {
            return null;
        }
        Matcher found = DURATION.matcher(text.strip());
        if (!found.matches() || Double.parseDouble(found.group(1)) <= 0) {
            throw new ConfigError(name + " = " + Words.quoted(text) + " is not a time such as 500ms, 3s or 15m");
        }
        return Double.parseDouble(found.group(1)) * UNITS_S.get(found.group(2));
    }
}

package millrace.spark.options;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Json;
import millrace.spark.common.Words;
import millrace.spark.offsets.Place;
import millrace.spark.offsets.Start;

/** Where to start and to end, read from options. ConfigError says what would be right. */
final class Places {
    private Places() {}

    /** A time goes before offsets, as in Kafka's connector. Null where nothing is said. */
    static Start read(String word, Given given, Place refused) {
        String name = word + "Timestamp";
        if (given.has(name)) {
            return byTime(name, given.text(name));
        }
        name = word + "Offsets";
        if (!given.has(name)) {
            return null;
        }
        Start value = byOffset(name, given.text(name));
        if (refused != null && refused.equals(value.all())) {
            throw new ConfigError(name + " = " + Given.lower(refused.kind().name()) + " reads nothing");
        }
        return value;
    }

    static Start byOffset(String option, String text) {
        String words = text.strip();
        Place word = word(Given.lower(words));
        if (word != null) {
            return Start.of(word);
        }
        if (words.startsWith("{")) {
            return byShard(option, words, Places::offset);
        }
        Long timeUs = Moments.parse(words);
        if (timeUs == null) {
            throw new ConfigError(option + " = " + Words.quoted(text) + " is not earliest, latest, a time such as "
                    + "2026-11-15T10:00:00+00:00, or offsets such as {\"7\": 120}");
        }
        return Start.of(Place.time(timeUs));
    }

    static Start byTime(String option, String text) {
        String words = text.strip();
        if (words.startsWith("{")) {
            return byShard(option, words, Places::time);
        }
        boolean isNumber = words.matches("[0-9]{1,15}");
        Long timeUs = isNumber ? Long.valueOf(Long.parseLong(words) * 1000) : Moments.parse(words);
        if (timeUs == null) {
            throw new ConfigError(option + " = " + Words.quoted(text) + " is not a time such as "
                    + "2026-11-15T10:00:00+00:00 or 1794736800000 (milliseconds since 1970), nor times by shard such "
                    + "as {\"7\": 1794736800000}");
        }
        return Start.of(Place.time(timeUs));
    }

    private static Place word(String text) {
        return switch (text) {
            case "earliest" -> Place.EARLIEST;
            case "latest" -> Place.LATEST;
            default -> null;
        };
    }

    /** With Kafka's numbers for the two ends of a log. */
    private static Place offset(JsonNode given) {
        if (given.isTextual()) {
            return word(given.asText());
        }
        if (!given.isIntegralNumber() || !given.canConvertToLong()) {
            return null;
        }
        long number = given.asLong();
        if (number == -1 || number == -2) {
            return number == -1 ? Place.LATEST : Place.EARLIEST;
        }
        return number < 0 ? null : Place.offset(number);
    }

    private static Place time(JsonNode given) {
        if (given.isIntegralNumber() && given.canConvertToLong() && given.asLong() >= 0) {
            return Place.time(Math.multiplyExact(given.asLong(), 1000L));
        }
        Long timeUs = given.isTextual() ? Moments.parse(given.asText()) : null;
        return timeUs == null ? null : Place.time(timeUs);
    }

    /** Values by shard, or by stream and then by shard as Kafka's connector has them. */
    private static Start byShard(String option, String text, Function<JsonNode, Place> read) {
        Map<Long, Place> values = new HashMap<>();
        Map<Long, String> streams = new HashMap<>();
        JsonNode fields;
        try {
            fields = Json.read(text);
        } catch (JsonProcessingException error) {
            throw new ConfigError(option + " is not JSON: " + error.getOriginalMessage());
        }
        for (Map.Entry<String, JsonNode> one : fields.properties()) {
            if (one.getValue().isObject()) {
                one.getValue().properties().forEach(place -> {
                    long shard = put(option, values, place, read);
                    streams.put(shard, one.getKey());
                });
            } else {
                put(option, values, one, read);
            }
        }
        return Start.of(values, streams);
    }

    private static long put(
            String option, Map<Long, Place> values, Map.Entry<String, JsonNode> one, Function<JsonNode, Place> read) {
        Place value = read.apply(one.getValue());
        if (!one.getKey().matches("[0-9]{1,18}") || value == null) {
            String given = one.getValue().isTextual()
                    ? Words.quoted(one.getValue().asText())
                    : one.getValue().toString();
            throw new ConfigError(option + " maps shards to places, such as {\"7\": 120, \"8\": \"earliest\"} or "
                    + "{\"sensors\": {\"7\": 120}}, not " + Words.quoted(one.getKey()) + " to " + given);
        }
        long shard = Long.parseLong(one.getKey());
        values.put(shard, value);
        return shard;
    }
}

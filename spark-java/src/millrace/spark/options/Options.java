package millrace.spark.options;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import millrace.spark.common.Bounds;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Environment;
import millrace.spark.common.Json;
import millrace.spark.common.Topics;
import millrace.spark.common.Words;
import millrace.spark.offsets.Place;
import millrace.spark.offsets.Start;

/** The options of the source: read from text once, checked at once, carried as plain values. */
public final class Options implements Serializable {
    private static final long serialVersionUID = 1L;
    static final List<String> OWN = List.of(
            "stream", "subscribe", "subscribePattern", "assign", "topics", "startingOffsets", "endingOffsets",
            "startingTimestamp", "endingTimestamp", "maxRowsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
            "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "group", "pushFilters");
    /** Names that Kafka's connector has for the same thing. */
    static final Map<String, String> ALIASES = Map.of(
            "kafka.bootstrap.servers", "url",
            "kafka.group.id", "group",
            "maxOffsetsPerTrigger", "maxRowsPerTrigger",
            "startingOffsetsByTimestamp", "startingTimestamp",
            "endingOffsetsByTimestamp", "endingTimestamp");
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}");

    public final Access access;
    /** Empty where there is a pattern: every stream whose whole name matches is read. */
    public final List<String> streams;

    public final Pattern pattern;
    /** The only shards to read; null for all. */
    public final Set<Long> shards;
    /** MQTT filters; none for every topic of the stream. */
    public final List<String> topics;

    public final Start start;
    public final Start end;
    public final Long rowsMost;
    public final Long bytesMost;
    /** A micro-batch waits for so many offsets, at most for `delayS`. */
    public final Long rowsLeast;

    public final double delayS;
    public final Long tasksLeast;
    public final Long taskRowsMost;
    public final boolean isLossFatal;
    /** A durable group that shows how far a streaming query has come, and holds the log for it. */
    public final String group;

    private Options(Given given) {
        String url = given.text("url", Environment.get(Environment.URL));
        access = new Access(given, url == null ? Sentences.DEFAULT_URL : url);
        Subject subject = Subject.read(given);
        streams = subject.streams;
        pattern = subject.pattern;
        shards = subject.shards;
        topics = topics(given.text("topics", ""));
        start = Places.read("starting", given, null);
        end = Places.read("ending", given, Place.EARLIEST);
        rowsMost = given.number("maxRowsPerTrigger");
        bytesMost = given.number("maxBytesPerTrigger");
        rowsLeast = given.number("minOffsetsPerTrigger");
        Double delay = given.seconds("maxTriggerDelay");
        delayS = delay == null ? Bounds.TRIGGER_DELAY_S : delay;
        tasksLeast = given.number("minPartitions");
        taskRowsMost = given.number("maxRecordsPerPartition");
        isLossFatal = given.toggle("failOnDataLoss", true);
        group = given.text("group");
        if (group != null && !NAME.matcher(group).matches()) {
            throw new ConfigError(
                    "group = " + Words.quoted(group) + " is not a group name: letters, digits, dot, dash, underscore");
        }
        // Spark always asks a source in Java what it takes.
        given.toggle("pushFilters", false);
    }

    /** ConfigError names the option that is wrong and what would be right. */
    public static Options parse(Map<String, String> given) {
        if (given.isEmpty()) {
            throw new ConfigError(Sentences.NO_OPTIONS);
        }
        List<String> names = new ArrayList<>(Access.NAMES);
        names.addAll(OWN);
        return new Options(new Given(given, names, ALIASES));
    }

    public Start batchStart() {
        if (group != null) {
            throw new ConfigError("group shows the progress of a streaming query; a batch query has none");
        }
        if (start != null && Place.LATEST.equals(start.all())) {
            throw new ConfigError("startingOffsets = latest reads nothing in a batch query");
        }
        return start == null ? Start.of(Place.EARLIEST) : start;
    }

    public Start streamStart() {
        if (end != null) {
            throw new ConfigError("endingOffsets and endingTimestamp are for batch queries; a stream has no end");
        }
        return start == null ? Start.of(Place.LATEST) : start;
    }

    private static List<String> topics(String text) {
        List<String> filters = parts(text);
        for (String filter : filters) {
            if (!Topics.isFilter(filter)) {
                throw new ConfigError("topics: " + Words.quoted(filter) + " is not a topic filter");
            }
        }
        return filters;
    }

    private static List<String> parts(String text) {
        List<String> found = new ArrayList<>();
        for (String part : text.split(",")) {
            if (!part.isBlank()) {
                found.add(part.strip());
            }
        }
        return found;
    }

    /** The streams to read, or a pattern for them, and the shards if they are chosen. */
    private record Subject(List<String> streams, Pattern pattern, Set<Long> shards) {
        static Subject read(Given options) {
            List<String> given = List.of("stream", "subscribe", "subscribePattern", "assign").stream()
                    .filter(options::has)
                    .toList();
            if (given.size() > 1) {
                throw new ConfigError(String.join(" and ", given) + " say the same thing: give one of them");
            }
            String name = given.isEmpty() ? "stream" : given.get(0);
            String text = options.text(name, "default").strip();
            return switch (name) {
                case "subscribe" -> new Subject(listed(text), null, null);
                case "subscribePattern" -> new Subject(List.of(), pattern(text), null);
                case "assign" -> assigned(text);
                default -> new Subject(List.of(text), null, null);
            };
        }

        private static List<String> listed(String text) {
            List<String> streams = List.copyOf(new LinkedHashSet<>(parts(text)));
            if (streams.isEmpty()) {
                throw new ConfigError("subscribe names no stream; give names with commas between them");
            }
            return streams;
        }

        private static Pattern pattern(String text) {
            try {
                return Pattern.compile(text);
            } catch (PatternSyntaxException error) {
                throw new ConfigError("subscribePattern = " + Words.quoted(text) + " is no regular expression: "
                        + error.getDescription());
            }
        }

        private static Subject assigned(String text) {
            Set<Long> shards = new TreeSet<>();
            List<String> streams = new ArrayList<>();
            boolean isRight = true;
            try {
                JsonNode fields = Json.read(text);
                fields.fieldNames().forEachRemaining(streams::add);
                for (JsonNode numbers : fields) {
                    isRight &= fields.isObject() && numbers.isArray();
                    for (JsonNode number : numbers) {
                        isRight &= number.isIntegralNumber();
                        shards.add(number.asLong());
                    }
                }
            } catch (JsonProcessingException error) {
                isRight = false;
            }
            if (!isRight || shards.isEmpty()) {
                throw new ConfigError("assign = " + Words.quoted(text)
                        + " does not map streams to shards, as {\"sensors\": [17, 18]} does");
            }
            return new Subject(List.copyOf(streams), null, shards);
        }
    }
}

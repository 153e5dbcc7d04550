package millrace.spark.options;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Environment;
import millrace.spark.common.Topics;
import millrace.spark.common.Words;

/** The options of the sink. There is no address by default: rows that go to a node that nobody named are lost. */
public final class SinkOptions implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final List<String> OWN = List.of(
            "stream", "topic", "qos", "retain", "writer", "batch",
            // Spark hands a sink these of its own.
            "checkpointLocation", "path", "queryName");
    private static final Map<String, String> ALIASES = Map.of(
            "kafka.bootstrap.servers", "url",
            // Delta Lake's names.
            "txnAppId", "writer",
            "txnVersion", "batch");
    private static final Pattern WRITER = Pattern.compile("[A-Za-z0-9._-]{1,100}");

    public final Access access;
    /** Every topic must belong to it; null for whichever streams the topics belong to. */
    public final String stream;
    /** Of rows in a frame without the column. */
    public final String topic;

    public final int qos;
    public final boolean retain;
    /** Names a batch write: of all writes with this writer and this batch one is carried out. */
    public final String writer;

    public final Long batch;

    private SinkOptions(Given given) {
        String url = given.text("url", Environment.get(Environment.URL));
        if (url == null) {
            throw new ConfigError(Sentences.NO_URL);
        }
        String level = given.text("qos", "1");
        if (!Set.of("0", "1", "2").contains(level)) {
            throw new ConfigError("qos = " + Words.quoted(level) + " is not 0, 1 or 2");
        }
        topic = given.text("topic");
        if (topic != null && !Topics.isTopic(topic)) {
            throw new ConfigError("topic = " + Words.quoted(topic) + " is not a topic to publish to");
        }
        writer = given.text("writer");
        batch = batch(given.text("batch"));
        access = new Access(given, url);
        stream = given.text("stream");
        qos = Integer.parseInt(level);
        retain = given.toggle("retain", false);
    }

    private Long batch(String text) {
        if ((writer == null) != (text == null)) {
            throw new ConfigError("writer and batch name a write together: give both or neither");
        }
        if (writer != null && !WRITER.matcher(writer).matches()) {
            throw new ConfigError("writer = " + Words.quoted(writer)
                    + " is not up to 100 letters, digits, dots, dashes, underscores");
        }
        if (text != null && !text.matches("[0-9]{1,18}")) {
            throw new ConfigError(
                    "batch = " + Words.quoted(text) + " is not a number from 0 on, such as the one of foreachBatch");
        }
        return text == null ? null : Long.valueOf(text);
    }

    /** The options of a view are for reading too: those say nothing here. */
    public static SinkOptions parse(Map<String, String> given, boolean isView) {
        List<String> names = new ArrayList<>(Access.NAMES);
        names.addAll(OWN);
        Map<String, String> own = new HashMap<>(given);
        if (isView) {
            Set<String> known = names.stream().map(Given::lower).collect(Collectors.toSet());
            Set<String> reading = Options.OWN.stream().map(Given::lower).collect(Collectors.toSet());
            own.keySet().removeIf(name -> reading.contains(Given.lower(name)) && !known.contains(Given.lower(name)));
        }
        return new SinkOptions(new Given(own, names, ALIASES));
    }
}

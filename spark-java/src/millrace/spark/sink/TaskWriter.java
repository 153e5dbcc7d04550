package millrace.spark.sink;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import millrace.spark.common.Bounds;
import millrace.spark.common.LocalError;
import millrace.spark.options.SinkOptions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.unsafe.types.UTF8String;

/** Brings all rows of a task to the nodes under an attempt that nobody used before. Rows keep their order per topic. */
final class TaskWriter implements DataWriter<InternalRow> {
    /** A topic as it stands in a packet, and where it goes. */
    private record Target(byte[] topic, Routes.Route route) {}

    private static final byte[] NO_PROPERTIES = {0};
    private static final int MQTT_3 = 4;
    private static final int MQTT_5 = 5;

    private final SinkOptions options;
    private final Row row;
    private final String writer;
    private final long batch;
    private final ClusterWriter cluster;
    private final Stager stager;
    private final Map<UTF8String, Target> targets = new HashMap<>();
    private final Map<Routes.Route, Section> sections = new LinkedHashMap<>();
    private Routes routes;

    TaskWriter(SinkOptions options, Row row, String writer, long batch) {
        this.options = options;
        this.row = row;
        this.writer = writer;
        this.batch = batch;
        cluster = new ClusterWriter(options.access);
        stager = new Stager(cluster, writer, batch);
    }

    @Override
    public void write(InternalRow given) {
        row.check(given);
        byte[] properties = row.properties(given);
        byte[] payload = row.payload(given);
        Target target = target(row.topic(given));
        byte[] more = properties == null ? NO_PROPERTIES : properties;
        Section section = sections.get(target.route);
        if (section == null) {
            section = begin(target.route, properties == null ? MQTT_3 : MQTT_5);
        } else if (properties != null && section.version != MQTT_5) {
            section = next(section, MQTT_5);
        }
        if (!section.hasRoom((long) target.topic.length + more.length + payload.length)) {
            section = next(section, section.version);
        }
        section.add(row.first(given), target.topic, more, payload);
    }

    private Section begin(Routes.Route route, int version) {
        Section section = new Section(route, version);
        sections.put(route, section);
        return section;
    }

    private Section next(Section full, int version) {
        if (full.rows() > 0) {
            stager.add(full);
        }
        return begin(full.route, version);
    }

    private Target target(UTF8String topic) {
        Target found = targets.get(topic);
        if (found == null) {
            byte[] text = topic.getBytes();
            if (text.length > Bounds.STRING_BYTES) {
                throw new LocalError("a topic has more than " + Bounds.STRING_BYTES + " bytes");
            }
            if (routes == null) {
                // A task without rows asks nobody.
                routes = new Routes(cluster.streams(), options.stream);
            }
            found = new Target(text, routes.find(topic.toString()));
            if (targets.size() >= Bounds.TOPICS_KEPT) {
                targets.clear();
            }
            targets.put(topic.copy(), found);
        }
        return found;
    }

    @Override
    public WriterCommitMessage commit() {
        for (Section section : sections.values()) {
            if (section.rows() > 0) {
                stager.add(section);
            }
        }
        sections.clear();
        stager.send();
        stager.await();
        return new Staged(writer, batch, stager.attempt, stager.blocks, stager.rows, cluster.http.firstUrl());
    }

    /** Nobody hears of this attempt: what it staged would lie there until its batch is decided. */
    @Override
    public void abort() {
        if (!stager.blocks.isEmpty()) {
            Decisions.giveUp(
                    options.access, Map.of(new Decisions.Batch(writer, batch), Set.of(stager.attempt)));
        }
    }

    @Override
    public void close() {
        // Connections belong to the process.
    }
}

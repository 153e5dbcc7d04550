package millrace.spark.sink;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import millrace.spark.common.Bounds;
import millrace.spark.common.Environment;
import millrace.spark.common.Json;
import millrace.spark.common.LocalError;
import millrace.spark.http.Address;
import millrace.spark.http.Answer;
import millrace.spark.http.Http;
import millrace.spark.http.HttpNode;
import millrace.spark.http.NoAnswer;
import millrace.spark.http.Timeouts;
import millrace.spark.options.Access;

/**
 * Stages blocks and decides batches: any node takes a request, and a node that is down is passed over. Every request
 * may be sent again: what is staged is known by its key, and a batch is decided once. So a request whose answer did
 * not come goes to the next node, and round again for a while.
 */
final class ClusterWriter {
    private static final String PACKETS = "application/vnd.millrace.packets";
    /** Answers that another node, or the same one later, may better. */
    private static final Set<Integer> AGAIN = Set.of(404, 409, 429, 500, 502, 503, 504, 507);

    final Http http;

    ClusterWriter(Access access) {
        this(access, Bounds.WRITE_PATIENCE_S);
    }

    ClusterWriter(Access access, double patienceS) {
        Access.Known known = access.read();
        Timeouts timeouts = Timeouts.toWrite(access.connectS, access.requestS, patienceS);
        http = new Http(known.addresses(), known.secret(), timeouts, access.caFile);
    }

    /**
     * What the node that answers first knows. It is the first to be asked from then on, so a node that accepts
     * connections and never answers costs nothing.
     */
    JsonNode streams() {
        Http.Ask<JsonNode> ask =
                (node, limit) -> taken(node.get(limit, "/v1/streams")).json().path("streams");
        return http.every(ask, "the streams", Http.NOTHING, answers -> true).get(0);
    }

    /** Returns once the sections are on the disks of a majority. */
    void stage(String stream, String writer, long batch, String attempt, List<byte[]> sections) {
        String path = "/v1/streams/" + Address.quoted(stream) + "/stage";
        String query = "?writer=" + Address.quoted(writer) + "&batch=" + batch + "&attempt=" + attempt;
        Http.Ask<Answer> ask = (node, limit) -> taken(node.post(limit, path + query, sections, PACKETS));
        http.first(ask, "POST " + path, Http.NOTHING);
    }

    /**
     * Decide a batch; whether it is visible. The driver of a pipeline of the cluster says which run of it this is: that
     * of an older run is refused.
     */
    boolean commit(String writer, long batch, Map<String, Map<Long, Integer>> attempts) {
        ObjectNode body = Json.object().put("batch", batch);
        ObjectNode winners = body.putObject("attempts");
        attempts.forEach((attempt, blocks) -> {
            ObjectNode counts = winners.putObject(attempt);
            blocks.forEach((shard, count) -> counts.put(shard.toString(), count));
        });
        String run = Environment.get(Environment.RUN);
        if (run != null && !run.isEmpty()) {
            body.put("run", run);
        }
        return ask(writer, "commit", body).json().path("visible").asBoolean();
    }

    void abort(String writer, long batch, Collection<String> attempts) {
        ObjectNode body = Json.object().put("batch", batch);
        ArrayNode lost = body.putArray("attempts");
        attempts.forEach(lost::add);
        ask(writer, "abort", body);
    }

    private Answer ask(String writer, String what, JsonNode body) {
        String path = "/v1/writers/" + Address.quoted(writer) + "/" + what;
        List<byte[]> pieces = List.of(Json.bytes(body));
        Http.Ask<Answer> ask = (node, limit) -> taken(node.post(limit, path, pieces, HttpNode.JSON));
        return http.first(ask, "POST " + path, Http.NOTHING);
    }

    /** The answer if it is a good one; LocalError for a refusal that no other node would better. */
    private static Answer taken(Answer answer) {
        if (answer.status() < 300) {
            return answer;
        }
        throw AGAIN.contains(answer.status()) ? new NoAnswer(answer.problem()) : new LocalError(answer.problem());
    }
}

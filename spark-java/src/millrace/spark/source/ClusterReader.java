package millrace.spark.source;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import millrace.spark.common.Bounds;
import millrace.spark.common.Json;
import millrace.spark.common.LocalError;
import millrace.spark.common.Words;
import millrace.spark.http.Address;
import millrace.spark.http.Answer;
import millrace.spark.http.Http;
import millrace.spark.http.HttpNode;
import millrace.spark.http.NoAnswer;
import millrace.spark.http.TimeLimit;
import millrace.spark.http.Timeouts;
import millrace.spark.offsets.Extent;
import millrace.spark.offsets.Position;
import millrace.spark.options.Access;

/**
 * Reading a stream from a cluster: any replica serves, and a node that is down is passed over.
 *
 * <p>What one node does not have another may have: a replica can lag behind, can have begun from a snapshot, which
 * holds no messages, or can be missing. Only an answer that no node could better ends the search: offsets that every
 * node has deleted, or refused access. Every call is bounded in time; LocalError says what each node answered.
 */
final class ClusterReader {
    /** Whole blocks in the first `length` bytes, and the offset to continue from. */
    record Blocks(byte[] data, int length, long next) {}

    private record Key(String access, String secret, Double connectS, Double requestS, String caFile) {}

    private static final String STREAMS = "/v1/streams";
    private static final Map<Key, ClusterReader> KEPT = new LinkedHashMap<>();

    final Http http;

    private ClusterReader(Access access, Access.Known known) {
        Timeouts timeouts = Timeouts.toRead(access.connectS, access.requestS);
        http = new Http(known.addresses(), known.secret(), timeouts, access.caFile);
    }

    /** The client of this process for these nodes and this user. A secret that has changed makes another one. */
    static ClusterReader of(Access access) {
        Access.Known known = access.read();
        Key key = new Key(known.toString(), known.secret(), access.connectS, access.requestS, access.caFile);
        synchronized (KEPT) {
            ClusterReader found = KEPT.remove(key);
            found = found == null ? new ClusterReader(access, known) : found;
            KEPT.put(key, found);
            if (KEPT.size() > Bounds.CLIENTS_KEPT) {
                KEPT.remove(KEPT.keySet().iterator().next());
            }
            return found;
        }
    }

    static String streamPath(String stream) {
        return STREAMS + "/" + Address.quoted(stream);
    }

    private static String shardPath(String stream, long shard, String what) {
        return streamPath(stream) + "/shards/" + shard + "/" + what;
    }

    /**
     * The shards of these streams, as far as the nodes know them. One node may hold some of the shards only, and lag
     * behind in them, so several are asked at the same time.
     */
    Map<Long, Extent> extents(List<String> streams) {
        boolean isOne = streams.size() == 1;
        List<JsonNode> rows = isOne
                ? rows(streamPath(streams.get(0)), "stream " + Words.quoted(streams.get(0)), name -> true)
                : rows(STREAMS, "the streams", streams::contains);
        if (!isOne) {
            Set<String> known = new HashSet<>();
            rows.forEach(row -> known.add(row.path("name").asText()));
            for (String name : streams) {
                if (!known.contains(name)) {
                    throw new LocalError("there is no stream " + Words.quoted(name));
                }
            }
        }
        for (JsonNode row : rows) {
            if (row.path("replication").asText().equals("routed") && row.path("shard_list").isEmpty()) {
                String name = row.path("name").asText(streams.get(0));
                throw new LocalError(
                        "stream " + Words.quoted(name) + " is routed: stored nowhere, Spark cannot read it");
            }
        }
        return merged(rows, streams.get(0));
    }

    /** The same for all streams whose whole names are wanted; there may be none yet. */
    Map<Long, Extent> extentsMatching(Predicate<String> wants) {
        return merged(rows(STREAMS, "the streams", wants), "");
    }

    /** What the nodes say about the one stream at this path, or about those of all that are wanted. */
    private List<JsonNode> rows(String path, String what, Predicate<String> wants) {
        Http.Ask<List<JsonNode>> ask = (node, limit) -> {
            JsonNode fields = checked(node.get(limit, path)).json();
            List<JsonNode> found = new ArrayList<>();
            if (!path.equals(STREAMS)) {
                found.add(fields);
            }
            for (JsonNode row : path.equals(STREAMS) ? fields.path("streams") : List.<JsonNode>of()) {
                if (wants.test(row.path("name").asText())) {
                    found.add(row);
                }
            }
            return found;
        };
        List<JsonNode> all = new ArrayList<>();
        http.every(ask, what, ClusterReader::concludeMissing, answers -> Enough.is(answers, http.count()))
                .forEach(all::addAll);
        return all;
    }

    /** Whole blocks, beginning with the one that holds `start`; the offset to continue from is higher. */
    Blocks blocks(String stream, long shard, long start, long end, byte[] room) {
        String path = shardPath(stream, shard, "blocks") + "?from=" + start + "&to=" + end;
        Http.Ask<Blocks> ask = (node, limit) -> {
            Answer answer = node.get(limit, path, room);
            if (answer.status() == 410) {
                throw new BeginsLater(answer.json().path("earliest_offset").asLong());
            }
            long next = checked(answer).headers().firstValueAsLong("Millrace-Next-Offset").orElse(start);
            if (next <= start) {
                throw new NoAnswer("it has nothing at offset " + start + " yet");
            }
            return new Blocks(answer.body(), answer.length(), next);
        };
        try {
            return http.first(ask, named(stream, shard), ClusterReader::concludeGone);
        } catch (AllBeginLater error) {
            throw new Expired(stream, shard, start, error.first);
        } catch (AllMissing error) {
            throw new Expired(stream, shard, start, null);
        }
    }

    /** The first offset whose message is from this time or later, within the extent. */
    long offsetAt(long shard, Extent extent, long timeUs) {
        String path = shardPath(extent.stream(), shard, "offset") + "?time_us=" + timeUs;
        Http.Ask<Long> ask = (node, limit) -> {
            JsonNode fields = checked(node.get(limit, path)).json();
            long offset = fields.path("offset").asLong();
            if (offset == fields.path("next_offset").asLong() && offset < extent.next()) {
                throw new NoAnswer("it lags behind");
            }
            if (offset == fields.path("first_offset").asLong() && offset > extent.first()) {
                throw new BeginsLater(offset);
            }
            return offset;
        };
        long found;
        try {
            found = http.first(ask, named(extent.stream(), shard), ClusterReader::concludeGone);
        } catch (AllBeginLater error) {
            found = error.first;
        }
        return Math.min(Math.max(found, extent.first()), extent.next());
    }

    /**
     * Tell a durable group how far a query has come. A group that does not exist is created on these filters, or on
     * those of the streams. LocalError if that is refused or nobody answers.
     */
    void advance(String group, List<String> filters, Collection<String> streams, Position position) {
        String path = "/v1/groups/" + Address.quoted(group) + "/advance";
        ObjectNode body = Json.object();
        ObjectNode positions = body.putObject("positions");
        position.offsets().forEach((shard, offset) -> positions.put(shard.toString(), offset));
        Http.Ask<Boolean> ask = (node, limit) -> {
            Answer answer = node.post(limit, path, body);
            if (answer.status() == 404) {
                create(node, limit, group, filters, streams);
                answer = node.post(limit, path, body);
            }
            checked(answer);
            return true;
        };
        http.first(ask, "group " + Words.quoted(group), ClusterReader::concludeGone);
    }

    private static void create(
            HttpNode node, TimeLimit limit, String group, List<String> filters, Collection<String> streams) {
        ObjectNode fields = Json.object().put("name", group).put("start", "earliest");
        ArrayNode wanted = fields.putArray("filters");
        filters.forEach(wanted::add);
        for (String stream : filters.isEmpty() ? streams : List.<String>of()) {
            JsonNode own = checked(node.get(limit, streamPath(stream))).json().path("filters");
            own.forEach(wanted::add);
            if (own.isEmpty()) {
                wanted.add("#");
            }
        }
        if (wanted.isEmpty()) {
            wanted.add("#");
        }
        Answer created = node.post(limit, "/v1/groups", fields);
        // Somebody else may have created it in between.
        if (created.status() != 409) {
            checked(created);
        }
    }

    private static String named(String stream, long shard) {
        return "stream " + Words.quoted(stream) + ", shard " + shard;
    }

    /** The answer if it is a good one. LocalError for a refusal, which no other node would better. */
    private static Answer checked(Answer answer) {
        int status = answer.status();
        if (status < 300) {
            return answer;
        }
        String detail = answer.problem();
        if (status == 404) {
            throw new Missing(detail);
        }
        if (status == 409 || status == 429 || status >= 500) {
            throw new NoAnswer(detail);
        }
        throw new LocalError(detail);
    }

    private static Map<Long, Extent> merged(List<JsonNode> rows, String stream) {
        Map<Long, Extent> found = new LinkedHashMap<>();
        for (JsonNode row : rows) {
            for (JsonNode shard : row.path("shard_list")) {
                merge(found, shard, row.path("name").asText(stream));
            }
        }
        return found;
    }

    /**
     * Add what one node knows of a shard: the highest end and the lowest first offset count. A node that has nothing,
     * because it was added just now, does not say where the others begin.
     */
    private static void merge(Map<Long, Extent> found, JsonNode row, String stream) {
        long shard = row.path("shard").asLong();
        long first = row.path("first_offset").asLong();
        long end = row.path("next_offset").asLong();
        Extent known = found.getOrDefault(shard, new Extent(0, 0, 0, stream, false));
        if (known.first() < known.next()) {
            first = first < end ? Math.min(known.first(), first) : known.first();
        } else if (first == end) {
            first = Math.max(known.first(), first);
        }
        found.put(
                shard,
                new Extent(
                        first,
                        Math.max(known.next(), end),
                        Math.max(known.sizeBytes(), row.path("bytes").asLong()),
                        stream,
                        known.isSealed() || row.path("sealed").asBoolean()));
    }

    // ------------------------------------------------------------------------------------ what nobody has

    /** The log of this node begins above the offset that was asked for, at `first`. */
    private static final class BeginsLater extends NoAnswer {
        private static final long serialVersionUID = 1L;
        final long first;

        BeginsLater(long first) {
            super("its log begins at " + first);
            this.first = first;
        }
    }

    /** This node knows no such stream or shard. */
    private static final class Missing extends NoAnswer {
        private static final long serialVersionUID = 1L;

        Missing(String reason) {
            super(reason);
        }
    }

    /** No node has the offset that was asked for; the log that begins first begins at `first`. */
    private static final class AllBeginLater extends LocalError {
        private static final long serialVersionUID = 1L;
        final long first;

        AllBeginLater(long first) {
            super("the logs begin at " + first);
            this.first = first;
        }
    }

    /** Every node answered, and none knows the shard. */
    private static final class AllMissing extends LocalError {
        private static final long serialVersionUID = 1L;

        AllMissing(String reason) {
            super(reason);
        }
    }

    /** A living node's word that there is no such stream is worth more than a dead node's silence. */
    private static void concludeMissing(List<NoAnswer> failures, boolean isLast) {
        for (NoAnswer failure : failures) {
            if (failure instanceof Missing) {
                throw new LocalError(failure.getMessage());
            }
        }
    }

    /** What every node lacks is gone; a node that is away may still have it for a while. */
    private static void concludeGone(List<NoAnswer> failures, boolean isLast) {
        int missing = 0;
        List<Long> begins = new ArrayList<>();
        for (NoAnswer failure : failures) {
            missing += failure instanceof Missing ? 1 : 0;
            if (failure instanceof BeginsLater later) {
                begins.add(later.first);
            }
        }
        if (missing == failures.size()) {
            throw new AllMissing(failures.get(0).url + ": " + failures.get(0).getMessage());
        }
        if (!begins.isEmpty() && (isLast || begins.size() + missing == failures.size())) {
            throw new AllBeginLater(begins.stream().mapToLong(Long::longValue).min().getAsLong());
        }
    }
}

package millrace.spark.http;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.UnresolvedAddressException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLException;
import millrace.spark.common.Environment;
import millrace.spark.common.Json;

/**
 * The HTTP port of one node. Every request may arrive twice: it is sent once more when a connection that was kept
 * turns out to be closed. Several threads may use it at the same time.
 */
public final class HttpNode {
    public static final String JSON = "application/json";

    private static final String TRUST =
            "name the authority that signed it: the variable " + Environment.CA_FILE + ", ca_file, or caFile in Spark";

    /** Without the name of the user. */
    public final String url;

    private final HttpClient client;
    private final String authorization;

    HttpNode(Address address, String password, HttpClient client) {
        this.url = address.url();
        this.client = client;
        if (address.user() == null) {
            authorization = null;
        } else {
            String pair = address.user() + ":" + (password == null ? "" : password);
            authorization = "Basic " + Base64.getEncoder().encodeToString(pair.getBytes(StandardCharsets.UTF_8));
        }
    }

    public Answer get(TimeLimit limit, String path) {
        return get(limit, path, null);
    }

    /** The body of the answer is put into `room` if it fits there. */
    public Answer get(TimeLimit limit, String path, byte[] room) {
        return request(limit, path, null, null, room);
    }

    public Answer post(TimeLimit limit, String path, JsonNode fields) {
        return post(limit, path, List.of(Json.bytes(fields)), JSON);
    }

    public Answer post(TimeLimit limit, String path, List<byte[]> pieces, String contentType) {
        return request(limit, path, pieces, contentType, null);
    }

    /** NoAnswer when the node cannot be reached, breaks off or stays silent. */
    private Answer request(TimeLimit limit, String path, List<byte[]> pieces, String contentType, byte[] room) {
        boolean isAgain = false;
        while (true) {
            try {
                Answer answer = exchange(limit, path, pieces, contentType, room);
                SilentNodes.answered(url);
                return answer;
            } catch (HttpConnectTimeoutException | TimeoutException error) {
                SilentNodes.stayedSilent(url);
                throw new NoAnswer("timed out", true);
            } catch (IOException error) {
                // A connection that was kept may have been closed by the node just now.
                if (isAgain || error instanceof ConnectException || error instanceof SSLException) {
                    throw new NoAnswer(reason(error));
                }
                isAgain = true;
            }
        }
    }

    private Answer exchange(TimeLimit limit, String path, List<byte[]> pieces, String contentType, byte[] room)
            throws IOException, TimeoutException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path))
                .header("Accept", "application/json, application/problem+json");
        if (authorization != null) {
            request.header("Authorization", authorization);
        }
        Moving moving = new Moving();
        if (pieces != null) {
            request.header("Content-Type", contentType).POST(body(pieces, moving));
        }
        CompletableFuture<HttpResponse<RoomBody.Filled>> coming =
                client.sendAsync(request.build(), info -> new RoomBody(info, room, moving));
        try {
            HttpResponse<RoomBody.Filled> found = wait(coming, limit, moving);
            return new Answer(
                    url + path, found.statusCode(), found.headers(), found.body().bytes(), found.body().length());
        } finally {
            moving.giveUp();
        }
    }

    /** As long as bytes come or go. */
    private static <T> T wait(CompletableFuture<T> coming, TimeLimit limit, Moving moving)
            throws IOException, TimeoutException {
        while (true) {
            long leftNs = moving.leftNs(limit.silenceS());
            if (leftNs <= 0) {
                coming.cancel(true);
                throw new TimeoutException();
            }
            try {
                return coming.get(leftNs, TimeUnit.NANOSECONDS);
            } catch (TimeoutException error) {
                // Bytes may have moved meanwhile.
            } catch (InterruptedException error) {
                coming.cancel(true);
                throw Threads.interrupted();
            } catch (ExecutionException error) {
                throw error.getCause() instanceof IOException cause
                        ? cause
                        : new IOException(String.valueOf(error.getCause()), error.getCause());
            }
        }
    }

    private static HttpRequest.BodyPublisher body(List<byte[]> pieces, Moving moving) {
        long size = pieces.stream().mapToLong(piece -> piece.length).sum();
        Iterable<byte[]> told = () -> {
            Iterator<byte[]> all = pieces.iterator();
            return new Iterator<>() {
                @Override
                public boolean hasNext() {
                    return all.hasNext();
                }

                @Override
                public byte[] next() {
                    moving.now();
                    return all.next();
                }
            };
        };
        return HttpRequest.BodyPublishers.fromPublisher(HttpRequest.BodyPublishers.ofByteArrays(told), size);
    }

    private static String reason(IOException error) {
        if (error instanceof SSLException) {
            return "its certificate is not trusted (" + error.getMessage() + "); " + TRUST;
        }
        Throwable cause = error;
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        if (cause instanceof UnresolvedAddressException) {
            return "the name of its host is not known";
        }
        if (error instanceof ConnectException) {
            return error.getMessage() == null ? "the connection was refused" : error.getMessage();
        }
        return error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
    }
}

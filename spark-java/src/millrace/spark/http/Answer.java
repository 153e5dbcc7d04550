package millrace.spark.http;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.http.HttpHeaders;
import millrace.spark.common.Json;
import millrace.spark.common.LocalError;

/** What a node answered; an error status is an answer too. The body is the first `length` bytes. */
public record Answer(String url, int status, HttpHeaders headers, byte[] body, int length) {
    public JsonNode json() {
        try {
            return Json.read(body, length);
        } catch (IOException error) {
            throw new LocalError(url + " answered what is no JSON: " + error.getMessage(), error);
        }
    }

    /** The error that a problem document states; the bare status where there is no such document. */
    public String problem() {
        try {
            JsonNode detail = Json.read(body, length).path("detail");
            if (detail.isTextual()) {
                return detail.asText();
            }
        } catch (IOException error) {
            // The status says it.
        }
        return url + " answered with status " + status;
    }
}

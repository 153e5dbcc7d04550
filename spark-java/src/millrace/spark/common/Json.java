package millrace.spark.common;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;

/** JSON by the parser that Spark brings along. */
public final class Json {
    private static final ObjectMapper MAPPER =
            new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private Json() {}

    public static ObjectNode object() {
        return MAPPER.createObjectNode();
    }

    public static JsonNode read(byte[] data, int length) throws IOException {
        return MAPPER.readTree(data, 0, length);
    }

    /** JsonProcessingException says where it is none. */
    public static JsonNode read(String text) throws JsonProcessingException {
        return MAPPER.readTree(text);
    }

    public static byte[] bytes(JsonNode fields) {
        try {
            return MAPPER.writeValueAsBytes(fields);
        } catch (JsonProcessingException error) {
            throw new LocalError("cannot be written as JSON: " + error.getOriginalMessage(), error);
        }
    }
}

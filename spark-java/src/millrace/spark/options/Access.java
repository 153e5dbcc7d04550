package millrace.spark.options;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Environment;
import millrace.spark.common.Words;
import millrace.spark.http.Address;

/**
 * Which nodes, and where the secret of the user is. Spark keeps options in its plan, shows some and sends them to
 * every executor: so a secret is read where and when it is needed, and never kept.
 */
public final class Access implements Serializable {
    private static final long serialVersionUID = 1L;
    /** The name under which a token of the cluster is given as a password: it says itself whose it is. */
    private static final String ANY_USER = "token";

    private static final Pattern TOKEN = Pattern.compile("mrt_[A-Za-z0-9_-]{43}");

    static final List<String> NAMES =
            List.of("url", "connectTimeout", "requestTimeout", "passwordFile", "tokenFile", "caFile");

    public final Double connectS;
    public final Double requestS;
    public final String caFile;
    private final List<Address> addresses;
    private final String passwordFile;
    private final String tokenFile;

    /** The nodes with the name of the user, and the user's secret or null. */
    public record Known(List<Address> addresses, String secret) {
        @Override
        public String toString() {
            return addresses.toString();
        }
    }

    Access(Given given, String url) {
        addresses = addresses(url);
        connectS = given.seconds("connectTimeout");
        requestS = given.seconds("requestTimeout");
        passwordFile = given.text("passwordFile");
        tokenFile = given.text("tokenFile");
        String ca = given.text("caFile");
        caFile = ca == null || ca.isEmpty() ? Environment.get(Environment.CA_FILE) : ca;
    }

    public Known read() {
        String token = secret("tokenFile", tokenFile, Environment.TOKEN);
        if (token == null || (tokenFile == null && passwordFile != null)) {
            return new Known(addresses, secret("passwordFile", passwordFile, Environment.PASSWORD));
        }
        int colon = token.indexOf(':');
        boolean isToken = colon < 0 && TOKEN.matcher(token).matches();
        if (colon <= 0 && !isToken) {
            throw new ConfigError("a token is what `millrace token create` shows, or USER:PASSWORD of a user");
        }
        String name = isToken ? ANY_USER : token.substring(0, colon);
        return new Known(
                addresses.stream().map(one -> one.as(name)).toList(), isToken ? token : token.substring(colon + 1));
    }

    private static String secret(String option, String file, String variable) {
        if (file == null) {
            return Environment.get(variable);
        }
        try {
            return Files.readString(Path.of(file)).strip();
        } catch (NoSuchFileException error) {
            throw new ConfigError(option + ": there is no file " + Words.quoted(file));
        } catch (IOException error) {
            throw new ConfigError(option + ": " + error.getMessage());
        }
    }

    private static List<Address> addresses(String text) {
        List<Address> found = new ArrayList<>();
        for (String part : text.split(",")) {
            if (part.isBlank()) {
                continue;
            }
            // Kafka's connector has addresses without a scheme.
            String url = part.strip().contains("://") ? part.strip() : "http://" + part.strip();
            Address address = Address.parse(url);
            if (address == null) {
                throw new ConfigError(
                        "url: " + Words.quoted(url) + " is not an HTTP address such as " + Sentences.DEFAULT_URL);
            }
            if (address.hasPassword()) {
                throw new ConfigError("url: " + Sentences.NO_SECRET);
            }
            found.add(address);
        }
        if (found.isEmpty()) {
            throw new ConfigError("url is empty; give an address such as " + Sentences.DEFAULT_URL);
        }
        return List.copyOf(found);
    }
}

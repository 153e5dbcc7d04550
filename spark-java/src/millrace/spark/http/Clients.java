package millrace.spark.http;

import java.io.IOException;
import java.io.InputStream;
import java.net.http.HttpClient;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import millrace.spark.common.Bounds;
import millrace.spark.common.ConfigError;

/** The clients of the JDK: one for each time-out and each set of authorities, with the connections of all nodes. */
final class Clients {
    private record Key(long connectMs, String caFile, long changedMs) {}

    private static final Map<Key, HttpClient> CLIENTS = new ConcurrentHashMap<>();

    private Clients() {}

    static HttpClient client(double connectS, String caFile) {
        long changedMs = caFile == null ? 0 : Path.of(caFile).toFile().lastModified();
        if (CLIENTS.size() >= Bounds.CLIENTS_KEPT) {
            // Those in use are held by who uses them.
            CLIENTS.clear();
        }
        return CLIENTS.computeIfAbsent(new Key((long) (connectS * 1000), caFile, changedMs), Clients::make);
    }

    private static HttpClient make(Key key) {
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .proxy(HttpClient.Builder.NO_PROXY)
                .executor(Threads.POOL)
                .connectTimeout(Duration.ofMillis(key.connectMs));
        if (key.caFile != null) {
            builder.sslContext(trusting(key.caFile));
        }
        return builder.build();
    }

    private static SSLContext trusting(String caFile) {
        Path path = Path.of(caFile);
        if (!Files.isRegularFile(path)) {
            throw new ConfigError("the TLS files cannot be used: there is no file " + caFile);
        }
        try (InputStream in = Files.newInputStream(path)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            int number = 0;
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("ca-" + number++, one);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException error) {
            throw new ConfigError("the TLS files cannot be used: " + error.getMessage());
        }
    }
}

package stave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.env.Authenticator;
import com.couchbase.client.core.env.CertificateAuthenticator;
import com.couchbase.client.core.env.PasswordAuthenticator;
import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Which servers the SDK trusts over TLS, and which certificates log in. */
@EnabledIfEnvironmentVariable(named = "STAVE_CA", matches = ".+", disabledReason = "the server is used without TLS here")
class TlsTest {
  private static final String CONN = StrictCopy.env("STAVE_CONN");
  private static final String BUCKET = StrictCopy.env("STAVE_BUCKET");
  private static final char[] NO_PASSWORD = {};
  /** Longer than a client needs to find a server that it trusts. */
  private static final Duration UNTRUSTED = Duration.ofSeconds(3);

  private static Path file(String variable) {
    return Path.of(StrictCopy.env(variable));
  }

  private static Authenticator password() {
    return PasswordAuthenticator.create(StrictCopy.env("STAVE_USER"), StrictCopy.env("STAVE_PASSWORD"));
  }

  /** What is between the lines around each part of this name in a file. */
  private static List<byte[]> parts(Path pem, String name) throws IOException {
    Pattern part = Pattern.compile("-----BEGIN " + name + "-----(.*?)-----END " + name + "-----", Pattern.DOTALL);
    Matcher found = part.matcher(Files.readString(pem));
    List<byte[]> parts = new ArrayList<>();
    while (found.find()) {
      parts.add(Base64.getMimeDecoder().decode(found.group(1)));
    }
    return parts;
  }

  private static PrivateKey key(Path pem) throws Exception {
    return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(parts(pem, "PRIVATE KEY").get(0)));
  }

  private static List<X509Certificate> chain(Path pem) throws Exception {
    List<X509Certificate> chain = new ArrayList<>();
    for (byte[] der : parts(pem, "CERTIFICATE")) {
      CertificateFactory certificates = CertificateFactory.getInstance("X.509");
      chain.add((X509Certificate) certificates.generateCertificate(new ByteArrayInputStream(der)));
    }
    return chain;
  }

  /** The administrator's certificate that a CA has signed, as `stave certs client` writes it. */
  private static Authenticator certificate(Path folder) throws Exception {
    return CertificateAuthenticator.fromKey(key(folder.resolve("client.key")), null, chain(folder.resolve("client.pem")));
  }

  private static Cluster trusting(String conn, Path ca, Authenticator authenticator) {
    return Cluster.connect(conn, ClusterOptions.clusterOptions(authenticator)
        .environment(environment -> environment.securityConfig(security -> security.trustCertificate(ca))));
  }

  private static void refused(String conn, Path ca, Authenticator authenticator) {
    try (Cluster other = trusting(conn, ca, authenticator)) {
      assertThrows(CouchbaseException.class, () -> other.bucket(BUCKET).waitUntilReady(UNTRUSTED));
    }
  }

  @Test
  void anotherCaIsNotTrusted() {
    refused(CONN, file("STAVE_STRANGE_CA"), password());
  }

  @Test
  void aNameThatIsNotInTheCertificateIsNotTrusted() {
    // Another name of this machine, which the certificate does not have.
    refused("couchbases://localhost" + CONN.substring(CONN.lastIndexOf(':')), file("STAVE_CA"), password());
  }

  /** A server that shows an expired certificate hears from the client why it goes away. */
  @Test
  void anExpiredCertificateIsNotTrusted() throws Exception {
    KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
    own.load(null, NO_PASSWORD);
    Path expired = file("STAVE_EXPIRED");
    own.setKeyEntry("expired", key(expired), NO_PASSWORD, chain(expired).toArray(new X509Certificate[0]));
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(own, NO_PASSWORD);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), null, null);
    List<String> heard = new ArrayList<>();
    InetAddress loopback = InetAddress.getByName("127.0.0.1");
    try (SSLServerSocket listener = (SSLServerSocket) context.getServerSocketFactory().createServerSocket(0, 50, loopback)) {
      Thread server = new Thread(() -> hear(listener, heard));
      server.start();
      refused("couchbases://127.0.0.1:" + listener.getLocalPort(), file("STAVE_CA"), password());
      listener.close();
      server.join();
    }
    // A connection that is closed meanwhile says nothing.
    assertTrue(heard.stream().anyMatch(why -> why.contains("certificate")), heard.toString());
    assertTrue(heard.stream().noneMatch(why -> why.startsWith("bytes")), heard.toString());
  }

  /** What clients say of the certificate, until the socket is closed. */
  private static void hear(SSLServerSocket listener, List<String> heard) {
    while (true) {
      try (SSLSocket connection = (SSLSocket) listener.accept()) {
        try {
          connection.startHandshake();
          heard.add(connection.getInputStream().read() < 0 ? "end" : "bytes");
        } catch (IOException error) {
          heard.add(String.valueOf(error.getMessage()));
        }
      } catch (IOException closed) {
        return;
      }
    }
  }

  @Test
  void aCertificateTakesThePlaceOfAPassword() throws Exception {
    try (Cluster own = trusting(CONN, file("STAVE_CA"), certificate(file("STAVE_CLIENT")))) {
      own.bucket(BUCKET).waitUntilReady(Duration.ofSeconds(20));
      Collection documents = own.bucket(BUCKET).defaultCollection();
      String key = "java:tls:" + UUID.randomUUID();
      documents.upsert(key, JsonObject.create().put("a", 1));
      assertEquals(1, documents.get(key).contentAsObject().getInt("a"));
    }
  }

  @Test
  void aCertificateOfAnotherCaDoesNot() throws Exception {
    refused(CONN, file("STAVE_CA"), certificate(file("STAVE_STRANGE_CLIENT")));
  }
}

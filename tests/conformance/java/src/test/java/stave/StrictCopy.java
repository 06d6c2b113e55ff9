package stave;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.SecurityConfig;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.env.ClusterEnvironment;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** What streams brought: the newest version of each document, how far each vBucket is, and what broke the protocol. */
abstract class StrictCopy implements DatabaseChangeListener {
  static final Duration DEADLINE = Duration.ofSeconds(60);

  final Map<String, DocumentChange> documents = new HashMap<>();
  final Map<Integer, Long> seen = new HashMap<>();
  final List<String> faults = new ArrayList<>();
  int changes;
  /** What is followed is dropped now or soon. */
  boolean mayEnd;

  synchronized void expectTheEnd() {
    mayEnd = true;
  }

  /** Keeps a change, or does not. */
  abstract void keep(DocumentChange change);

  /** What a wait that was in vain prints beside its name. */
  String progress() {
    return changes + " changes";
  }

  static String env(String name) {
    return System.getenv(name);
  }

  /** The file of certificates that are trusted; nothing if the server is used without TLS. */
  static Optional<Path> ca() {
    return Optional.ofNullable(env("STAVE_CA")).map(Path::of);
  }

  /** A client of the server under test, to be built. */
  static Client.Builder client() {
    Client.Builder client = Client.builder()
        .connectionString(env("STAVE_CONN"))
        .bucket(env("STAVE_BUCKET"))
        .credentials(env("STAVE_USER"), env("STAVE_PASSWORD"))
        .collectionsAware(true)
        .flowControl(1 << 20)
        .userAgent("stave-conformance", "1");
    ca().ifPresent(ca -> client.securityConfig(SecurityConfig.builder().enableTls(true).trustCertificate(ca)));
    return client;
  }

  /** A connection to the server under test. */
  static Cluster connect() {
    return connect(env("STAVE_USER"), env("STAVE_PASSWORD"), environment -> {});
  }

  /** The same of a user, and with more settings. */
  static Cluster connect(String user, String password, Consumer<ClusterEnvironment.Builder> more) {
    ClusterOptions options = ClusterOptions.clusterOptions(user, password).environment(environment -> {
      ca().ifPresent(ca -> environment.securityConfig(security -> security.trustCertificate(ca)));
      more.accept(environment);
    });
    return Cluster.connect(env("STAVE_CONN"), options);
  }

  void advance(int vbucket, long seqno) {
    Long before = seen.put(vbucket, seqno);
    if (before != null && seqno <= before) {
      faults.add("vBucket " + vbucket + ": seqno " + seqno + " after " + before);
    }
  }

  private synchronized void change(DocumentChange change) {
    advance(change.getVbucket(), change.getOffset().getSeqno());
    keep(change);
    notifyAll();
  }

  @Override
  public void onMutation(Mutation mutation) {
    change(mutation);
  }

  @Override
  public void onDeletion(Deletion deletion) {
    change(deletion);
  }

  @Override
  public synchronized void onFailure(StreamFailure failure) {
    String cause = String.valueOf(failure.getCause());
    // The client opens a stream again that has nothing left to follow, and finds that out by itself.
    if (!mayEnd || !cause.contains("because it does not exist")) {
      faults.add(cause);
    }
    notifyAll();
  }

  synchronized void await(String what, BooleanSupplier is) throws InterruptedException {
    long deadline = System.nanoTime() + DEADLINE.toNanos();
    while (!is.getAsBoolean()) {
      assertTrue(faults.isEmpty(), () -> progress() + ": " + faults);
      long leftMs = (deadline - System.nanoTime()) / 1_000_000;
      assertTrue(leftMs > 0, "not in time: " + what + ": " + progress());
      wait(leftMs);
    }
    assertTrue(faults.isEmpty(), () -> progress() + ": " + faults);
  }
}

package stave;

import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.core.msg.kv.MutationToken;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.kv.MutationState;
import com.couchbase.client.java.kv.ScanOptions;
import com.couchbase.client.java.kv.ScanResult;
import com.couchbase.client.java.kv.ScanType;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

/**
 * Scans of documents that do not change, again and again, while nodes of the cluster fail: a scan that ends without an error
 * has each of them once, whichever nodes failed or gave vBuckets away meanwhile. Another program brings the failures about;
 * this one ends when its standard input does, and a scan must succeed after that.
 */
final class ClusterScans {
  private static final int DOCUMENTS = 300;
  private static final String PREFIX = "java-scan:";
  /** How long scans may fail after nodes did, until one has ended without an error. */
  private static final Duration SCAN_AGAIN_WITHIN = Duration.ofSeconds(30);

  private static int whole;
  private static int failed;

  public static void main(String[] arguments) throws Exception {
    AtomicBoolean isOver = new AtomicBoolean();
    Cluster cluster = StrictCopy.connect();
    Bucket bucket = cluster.bucket(StrictCopy.env("STAVE_BUCKET"));
    bucket.waitUntilReady(Duration.ofSeconds(10));
    Collection collection = bucket.defaultCollection();
    List<String> expected = storeAgain(collection);
    Thread reader = new Thread(() -> {
      try {
        System.in.transferTo(java.io.OutputStream.nullOutputStream());
      } catch (java.io.IOException error) {
        // It is as good as its end.
      }
      isOver.set(true);
    });
    reader.setDaemon(true);
    reader.start();
    String wrong = null;
    while (!isOver.get() && wrong == null) {
      wrong = scan(collection, expected, 10);
    }
    int before = whole;
    long deadline = System.nanoTime() + SCAN_AGAIN_WITHIN.toNanos();
    while (wrong == null && whole == before && System.nanoTime() < deadline) {
      wrong = scan(collection, expected, 10);
    }
    if (wrong == null && whole == before) {
      wrong = "no scan has ended without an error within " + SCAN_AGAIN_WITHIN.toSeconds() + " s after the last failure";
    }
    cluster.disconnect();
    System.out.println("java scans: " + whole + " whole, " + failed + " failed" + (wrong == null ? "" : ": " + wrong));
    System.exit(wrong == null ? 0 : 1);
  }

  /** The same as {@link #store}, again if a node fails meanwhile. */
  private static List<String> storeAgain(Collection collection) throws InterruptedException {
    long deadline = System.nanoTime() + SCAN_AGAIN_WITHIN.toNanos();
    while (true) {
      try {
        return store(collection);
      } catch (CouchbaseException error) {
        if (System.nanoTime() > deadline) {
          throw error;
        }
        Thread.sleep(20);
      }
    }
  }

  /** Stores the documents, and waits until they are saved: scans show what is saved. */
  private static List<String> store(Collection collection) {
    List<MutationToken> tokens = new ArrayList<>();
    List<String> keys = new ArrayList<>();
    for (int at = 0; at < DOCUMENTS; at++) {
      keys.add(PREFIX + at);
      tokens.add(collection.upsert(PREFIX + at, at).mutationToken().orElseThrow());
    }
    Collections.sort(keys);
    MutationState state = MutationState.from(tokens.toArray(new MutationToken[0]));
    ScanOptions options = ScanOptions.scanOptions().consistentWith(state).timeout(Duration.ofSeconds(20));
    long found = collection.scan(ScanType.prefixScan(PREFIX), options.idsOnly(true)).count();
    if (found != DOCUMENTS) {
      throw new IllegalStateException("a scan shows " + found + " of " + DOCUMENTS);
    }
    return keys;
  }

  /** What is wrong with a scan that ended without an error; nothing if it failed. */
  private static String scan(Collection collection, List<String> expected, int seconds) throws InterruptedException {
    List<String> found;
    try {
      ScanOptions options = ScanOptions.scanOptions().idsOnly(true).timeout(Duration.ofSeconds(seconds));
      found = collection.scan(ScanType.prefixScan(PREFIX), options).map(ScanResult::id).sorted()
          .collect(Collectors.toList());
    } catch (CouchbaseException error) {
      // A node failed, or a vBucket went to another one: the SDK says so.
      failed++;
      Thread.sleep(20);
      return null;
    }
    whole++;
    return found.equals(expected) ? null : "one has " + found.size() + " of " + DOCUMENTS + ": " + found;
  }

  private ClusterScans() {}
}

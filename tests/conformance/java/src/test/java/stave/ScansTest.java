package stave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.msg.kv.MutationToken;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.MutationState;
import com.couchbase.client.java.kv.ScanOptions;
import com.couchbase.client.java.kv.ScanResult;
import com.couchbase.client.java.kv.ScanTerm;
import com.couchbase.client.java.kv.ScanType;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Range, prefix and sampling scans, with documents and without. */
class ScansTest {
  private static final Duration PATIENCE = Duration.ofSeconds(20);
  private static final String PREFIX = "scan:" + UUID.randomUUID() + ":";

  private static final Map<String, JsonObject> STORED = new TreeMap<>();
  private static final List<MutationToken> TOKENS = new ArrayList<>();

  private static Cluster cluster;
  private static Collection collection;

  @BeforeAll
  static void store() {
    cluster = StrictCopy.connect();
    Bucket bucket = cluster.bucket(StrictCopy.env("STAVE_BUCKET"));
    bucket.waitUntilReady(PATIENCE);
    collection = bucket.defaultCollection();
    for (int n = 0; n < 60; n++) {
      String key = String.format("%s%02d", PREFIX, n);
      JsonObject document = JsonObject.create().put("n", n);
      TOKENS.add(collection.upsert(key, document).mutationToken().orElseThrow());
      STORED.put(key, document);
    }
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  private static ScanOptions options() {
    MutationState state = MutationState.from(TOKENS.toArray(new MutationToken[0]));
    return ScanOptions.scanOptions().consistentWith(state).timeout(PATIENCE);
  }

  private static TreeSet<String> keys(ScanType type, ScanOptions options) {
    return collection.scan(type, options).map(ScanResult::id).collect(Collectors.toCollection(TreeSet::new));
  }

  @Test
  void thoseOfAPrefixShowItsDocuments() {
    Map<String, JsonObject> found = new TreeMap<>();
    collection.scan(ScanType.prefixScan(PREFIX), options())
        .forEach(one -> found.put(one.id(), one.contentAs(JsonObject.class)));
    assertEquals(STORED, found);
  }

  @Test
  void theyComeInSmallBatches() {
    ScanOptions options = options().idsOnly(true).batchItemLimit(1);
    assertEquals(STORED.keySet(), keys(ScanType.prefixScan(PREFIX), options));
  }

  @Test
  void exclusiveEndsAreLeftOut() {
    ScanTerm from = ScanTerm.exclusive(PREFIX + "10");
    ScanTerm to = ScanTerm.exclusive(PREFIX + "20");
    TreeSet<String> expected =
        STORED.keySet().stream().filter(key -> key.compareTo(PREFIX + "10") > 0 && key.compareTo(PREFIX + "20") < 0)
            .collect(Collectors.toCollection(TreeSet::new));
    assertEquals(expected, keys(ScanType.rangeScan(from, to), options().idsOnly(true)));
  }

  @Test
  void noMoreSamplesAreTakenThanAskedFor() {
    assertTrue(keys(ScanType.samplingScan(7, 42), options().idsOnly(true)).size() <= 7);
  }
}

package stave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.error.BucketExistsException;
import com.couchbase.client.core.error.BucketNotFlushableException;
import com.couchbase.client.core.error.BucketNotFoundException;
import com.couchbase.client.core.error.CollectionExistsException;
import com.couchbase.client.core.error.CollectionNotFoundException;
import com.couchbase.client.core.error.DocumentNotFoundException;
import com.couchbase.client.core.error.ScopeExistsException;
import com.couchbase.client.core.error.ScopeNotFoundException;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.GetOptions;
import com.couchbase.client.java.manager.bucket.BucketManager;
import com.couchbase.client.java.manager.bucket.BucketSettings;
import com.couchbase.client.java.manager.bucket.BucketType;
import com.couchbase.client.java.manager.bucket.CompressionMode;
import com.couchbase.client.java.manager.bucket.ConflictResolutionType;
import com.couchbase.client.java.manager.bucket.EvictionPolicyType;
import com.couchbase.client.java.manager.bucket.StorageBackend;
import com.couchbase.client.java.manager.collection.CollectionManager;
import com.couchbase.client.java.manager.collection.CollectionSpec;
import com.couchbase.client.java.manager.collection.CreateCollectionSettings;
import com.couchbase.client.java.manager.collection.ScopeSpec;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Buckets, scopes and collections by the SDK's managers. */
class ManagersTest {
  private static final Duration READY = Duration.ofSeconds(20);

  private static Cluster cluster;
  private static Bucket bucket;
  private final List<String> made = new ArrayList<>();

  @BeforeAll
  static void connect() {
    cluster = StrictCopy.connect();
    bucket = cluster.bucket(StrictCopy.env("STAVE_BUCKET"));
    bucket.waitUntilReady(READY);
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  @AfterEach
  void dropWhatWasMade() {
    for (String name : made) {
      try {
        cluster.buckets().dropBucket(name);
      } catch (BucketNotFoundException gone) {
        continue;
      }
    }
  }

  private BucketSettings settings() {
    String name = "java-" + UUID.randomUUID().toString().substring(0, 12);
    made.add(name);
    return BucketSettings.create(name).ramQuotaMB(100).numReplicas(0);
  }

  @Test
  void aBucketIsMadeReadAndDropped() {
    BucketManager buckets = cluster.buckets();
    BucketSettings wanted = settings()
        .bucketType(BucketType.COUCHBASE)
        .flushEnabled(true)
        .maxExpiry(Duration.ofSeconds(60))
        .compressionMode(CompressionMode.ACTIVE)
        .evictionPolicy(EvictionPolicyType.FULL)
        .conflictResolutionType(ConflictResolutionType.SEQUENCE_NUMBER)
        .storageBackend(StorageBackend.COUCHSTORE)
        .replicaIndexes(true)
        .minimumDurabilityLevel(DurabilityLevel.NONE);
    buckets.createBucket(wanted);
    BucketSettings there = buckets.getBucket(wanted.name());
    assertEquals(wanted.name(), there.name());
    assertEquals(100, there.ramQuotaMB());
    assertEquals(0, there.numReplicas());
    assertTrue(there.flushEnabled());
    assertEquals(Duration.ofSeconds(60), there.maxExpiry());
    assertEquals(CompressionMode.ACTIVE, there.compressionMode());
    assertEquals(EvictionPolicyType.FULL, there.evictionPolicy());
    assertEquals(ConflictResolutionType.SEQUENCE_NUMBER, there.conflictResolutionType());
    assertEquals(StorageBackend.COUCHSTORE, there.storageBackend());
    assertEquals(DurabilityLevel.NONE, there.minimumDurabilityLevel());
    assertTrue(buckets.getAllBuckets().containsKey(wanted.name()));
    assertThrows(BucketExistsException.class, () -> buckets.createBucket(wanted));
    buckets.dropBucket(wanted.name());
    assertThrows(BucketNotFoundException.class, () -> buckets.getBucket(wanted.name()));
    assertThrows(BucketNotFoundException.class, () -> buckets.dropBucket(wanted.name()));
  }

  @Test
  void aBucketIsChanged() {
    BucketSettings wanted = settings();
    cluster.buckets().createBucket(wanted);
    cluster.buckets().updateBucket(cluster.buckets().getBucket(wanted.name()).ramQuotaMB(150).maxExpiry(Duration.ofSeconds(9)));
    BucketSettings there = cluster.buckets().getBucket(wanted.name());
    assertEquals(150, there.ramQuotaMB());
    assertEquals(Duration.ofSeconds(9), there.maxExpiry());
  }

  @Test
  void anEphemeralBucketIsServed() {
    BucketSettings wanted = settings().bucketType(BucketType.EPHEMERAL).evictionPolicy(EvictionPolicyType.NOT_RECENTLY_USED);
    cluster.buckets().createBucket(wanted);
    assertEquals(BucketType.EPHEMERAL, cluster.buckets().getBucket(wanted.name()).bucketType());
    Bucket ephemeral = cluster.bucket(wanted.name());
    ephemeral.waitUntilReady(READY);
    ephemeral.defaultCollection().upsert("k", JsonObject.create().put("a", 1));
    assertEquals(1, ephemeral.defaultCollection().get("k").contentAsObject().getInt("a"));
  }

  @Test
  void aBucketThatAllowsItIsEmptied() {
    BucketSettings wanted = settings();
    BucketManager buckets = cluster.buckets();
    buckets.createBucket(wanted);
    Bucket own = cluster.bucket(wanted.name());
    own.waitUntilReady(READY);
    Collection documents = own.defaultCollection();
    documents.upsert("k", JsonObject.create());
    assertThrows(BucketNotFlushableException.class, () -> buckets.flushBucket(wanted.name()));
    assertTrue(documents.exists("k").exists());
    buckets.updateBucket(buckets.getBucket(wanted.name()).flushEnabled(true));
    buckets.flushBucket(wanted.name());
    assertThrows(DocumentNotFoundException.class, () -> documents.get("k"));
    assertThrows(BucketNotFoundException.class, () -> buckets.flushBucket("java-none"));
  }

  @Test
  void scopesAndCollectionsComeAndGo() throws InterruptedException {
    CollectionManager manager = bucket.collections();
    String scope = "java-" + UUID.randomUUID().toString().substring(0, 8);
    manager.createScope(scope);
    assertThrows(ScopeExistsException.class, () -> manager.createScope(scope));
    manager.createCollection(scope, "c", CreateCollectionSettings.createCollectionSettings().maxExpiry(Duration.ofSeconds(30)));
    manager.createCollection(scope, "forever", CreateCollectionSettings.createCollectionSettings().maxExpiry(CollectionSpec.NEVER_EXPIRE));
    assertThrows(CollectionExistsException.class, () -> manager.createCollection(scope, "c"));
    assertThrows(ScopeNotFoundException.class, () -> manager.createCollection("java-none", "c"));
    ScopeSpec listed = manager.getAllScopes().stream().filter(one -> one.name().equals(scope)).findFirst().orElseThrow();
    Map<String, CollectionSpec> collections =
        listed.collections().stream().collect(Collectors.toMap(CollectionSpec::name, one -> one));
    assertEquals(Duration.ofSeconds(30), collections.get("c").maxExpiry());
    assertEquals(2, collections.size());
    Collection collection = bucket.scope(scope).collection("c");
    collection.upsert("k", JsonObject.create().put("v", 1));
    Instant expiry = collection.get("k", GetOptions.getOptions().withExpiry(true)).expiryTime().orElseThrow();
    assertFalse(expiry.isAfter(Instant.now().plusSeconds(32)));
    manager.dropCollection(scope, "c");
    assertThrows(CollectionNotFoundException.class, () -> manager.dropCollection(scope, "c"));
    manager.dropScope(scope);
    assertThrows(ScopeNotFoundException.class, () -> manager.dropScope(scope));
  }
}

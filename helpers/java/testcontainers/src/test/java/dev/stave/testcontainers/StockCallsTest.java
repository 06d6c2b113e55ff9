package dev.stave.testcontainers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.json.JsonObject;
import com.github.dockerjava.api.command.InspectContainerResponse;
import com.github.dockerjava.api.model.ContainerNetwork;
import com.github.dockerjava.api.model.NetworkSettings;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.testcontainers.couchbase.BucketDefinition;
import org.testcontainers.couchbase.CouchbaseContainer;
import org.testcontainers.couchbase.CouchbaseService;
import org.testcontainers.utility.DockerImageName;

/** The calls that the stock container makes at its start, by its own code, to a node without a container. */
class StockCallsTest {
  /** The stock container, whose container is this node. */
  static final class Stock extends CouchbaseContainer {
    private final Node node;

    Stock(Node node) {
      super(DockerImageName.parse("stave:0.1.0").asCompatibleSubstituteFor("couchbase/server"));
      this.node = node;
    }

    // Otherwise it asks Docker.
    @Override
    public String getDockerImageName() {
      return "stave:0.1.0";
    }

    @Override
    public String getHost() {
      return node.host;
    }

    @Override
    public Integer getMappedPort(int port) {
      return port;
    }

    @Override
    public InspectContainerResponse getContainerInfo() {
      try {
        var network = new ContainerNetwork().withIpv4Address(node.host);
        var settings = new NetworkSettings();
        set(settings, "networks", Map.of("bridge", network));
        var info = new InspectContainerResponse();
        set(info, "networkSettings", settings);
        return info;
      } catch (ReflectiveOperationException error) {
        throw new AssertionError(error);
      }
    }

    private static void set(Object of, String name, Object value) throws ReflectiveOperationException {
      Field field = of.getClass().getDeclaredField(name);
      field.setAccessible(true);
      field.set(of, value);
    }

    void setUp() {
      configure();
      containerIsStarting(getContainerInfo(), false);
      containerIsStarted(getContainerInfo(), false);
    }
  }

  @Test
  void aStockContainerStartsWithTheDataServiceAlone() throws Exception {
    try (Node node = new Node()) {
      Stock stock = new Stock(node);
      stock.withEnabledServices(CouchbaseService.KV);
      stock.withBucket(new BucketDefinition("shop").withQuota(100).withPrimaryIndex(false));
      stock.setUp();
      try (Cluster cluster =
          Cluster.connect(stock.getConnectionString(), stock.getUsername(), stock.getPassword())) {
        var bucket = cluster.bucket("shop");
        bucket.waitUntilReady(Duration.ofSeconds(30));
        bucket.defaultCollection().upsert("order-1", JsonObject.create().put("total", 3));
        var found = bucket.defaultCollection().get("order-1").contentAsObject();
        assertEquals(3, found.getInt("total"));
      }
    }
  }

  @Test
  void whatStaveDoesNotHaveIsRefusedByName() throws Exception {
    try (Node node = new Node()) {
      var refused = assertThrows(IllegalStateException.class, () -> new Stock(node).setUp());
      assertTrue(refused.getMessage().contains("Stave has no service"), refused.getMessage());
    }
  }
}

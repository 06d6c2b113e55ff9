package dev.stave.testcontainers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.couchbase.client.java.Cluster;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.testcontainers.DockerClientFactory;

class StaveContainerTest {
  /** The container, which is a node without one. */
  static final class Here extends StaveContainer {
    private final Node node;

    Here(Node node) {
      super("stave:0.1.0");
      this.node = node;
    }

    @Override
    public String getHost() {
      return node.host;
    }

    @Override
    public Integer getMappedPort(int port) {
      return port;
    }
  }

  @Test
  void theContainerSaysWhatItNeeds() {
    StaveContainer container =
        new StaveContainer("localhost/stave:0.1.0").withCredentials("ada", "secret1").withBucket("shop:100MiB");
    container.withBucket("carts");
    container.configure();
    assertEquals(List.of(11210, 8091), container.getExposedPorts());
    Map<String, String> variables = container.getEnvMap();
    assertEquals("ada", variables.get("STAVE_USERNAME"));
    assertEquals("secret1", variables.get("STAVE_PASSWORD"));
    assertEquals("shop:100MiB,carts", variables.get("STAVE_BUCKETS"));
    assertThrows(IllegalStateException.class, () -> new StaveContainer("couchbase/server:7.6.2"));
  }

  @Test
  void theNodeIsToldWhereItIsReached() throws Exception {
    try (Node node = new Node()) {
      Here here = new Here(node);
      here.containerIsStarted(null);
      String services = here.order("GET", "/pools/default/nodeServices", Map.of());
      assertTrue(services.contains("\"hostname\":\"" + node.host + "\""), services);
      var refused =
          assertThrows(
              IllegalStateException.class,
              () -> here.order("POST", "/settings/indexes", Map.of("storageMode", "forestdb")));
      assertTrue(refused.getMessage().contains("no indexes"), refused.getMessage());
    }
  }

  /** Where there is Docker, with the image that STAVE_IMAGE names. */
  @Test
  void aContainerStarts() {
    String image = System.getenv("STAVE_IMAGE");
    assumeTrue(image != null && DockerClientFactory.instance().isDockerAvailable(), "no STAVE_IMAGE, or no Docker");
    try (StaveContainer stave = new StaveContainer(image)) {
      stave.start();
      try (Cluster cluster = Cluster.connect(stave.getConnectionString(), stave.getUsername(), stave.getPassword())) {
        var bucket = cluster.bucket("default");
        bucket.waitUntilReady(Duration.ofSeconds(30));
        bucket.defaultCollection().upsert("k", 1);
        assertEquals(1, bucket.defaultCollection().get("k").contentAs(Integer.class));
      }
    }
  }
}

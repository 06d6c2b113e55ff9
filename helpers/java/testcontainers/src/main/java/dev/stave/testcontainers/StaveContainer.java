package dev.stave.testcontainers;

import com.github.dockerjava.api.command.InspectContainerResponse;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.HttpWaitStrategy;
import org.testcontainers.utility.DockerImageName;

/**
 * A node of Stave in a container, on the shape of Testcontainers' {@code CouchbaseContainer}.
 *
 * <p>The image is the one that {@code cargo xtask dist --image} makes. SDKs outside of the container use the mapped
 * ports, which the node names as its alternate address.
 */
public class StaveContainer extends GenericContainer<StaveContainer> {
  /** What an image has to be, or be declared a substitute of. */
  static final DockerImageName IMAGE = DockerImageName.parse("stave");

  static final int KV_PORT = 11210;
  static final int HTTP_PORT = 8091;
  private static final String ALTERNATE = "/node/controller/setupAlternateAddresses/external";

  private final HttpClient client = HttpClient.newHttpClient();
  private final List<String> buckets = new ArrayList<>();
  private String username = "Administrator";
  private String password = "password";

  public StaveContainer(String image) {
    this(DockerImageName.parse(image));
  }

  /** An image of another name: {@code DockerImageName.parse("registry/x").asCompatibleSubstituteFor("stave")}. */
  public StaveContainer(DockerImageName image) {
    super(image);
    // podman calls images that it loads localhost/NAME.
    image.assertCompatibleWith(IMAGE, DockerImageName.parse("localhost/stave"));
  }

  /** The administrator. */
  public StaveContainer withCredentials(String username, String password) {
    this.username = username;
    this.password = password;
    return this;
  }

  /** A bucket, {@code NAME[:QUOTA[:TYPE]]}; may be repeated. Without any there is "default". */
  public StaveContainer withBucket(String bucket) {
    buckets.add(bucket);
    return this;
  }

  public String getUsername() {
    return username;
  }

  public String getPassword() {
    return password;
  }

  /** For SDKs. */
  public String getConnectionString() {
    return "couchbase://" + getHost() + ":" + getMappedPort(KV_PORT);
  }

  /** The address of the first node over HTTP. */
  public String getHttpAddress() {
    return "http://" + getHost() + ":" + getMappedPort(HTTP_PORT);
  }

  @Override
  protected void configure() {
    super.configure();
    addExposedPorts(KV_PORT, HTTP_PORT);
    withEnv("STAVE_USERNAME", username);
    withEnv("STAVE_PASSWORD", password);
    if (!buckets.isEmpty()) {
      withEnv("STAVE_BUCKETS", String.join(",", buckets));
    }
    waitingFor(new HttpWaitStrategy().forPort(HTTP_PORT).forPath("/readyz").forStatusCode(200));
  }

  @Override
  protected void containerIsStarted(InspectContainerResponse info) {
    Map<String, String> form = new TreeMap<>();
    form.put("hostname", getHost());
    form.put("kv", Integer.toString(getMappedPort(KV_PORT)));
    form.put("mgmt", Integer.toString(getMappedPort(HTTP_PORT)));
    order("PUT", ALTERNATE, form);
  }

  /** A request of the administrator over HTTP; returns the answer's body, or fails with it. */
  public String order(String method, String path, Map<String, String> form) {
    String body =
        form.entrySet().stream()
            .map(field -> field.getKey() + "=" + URLEncoder.encode(field.getValue(), StandardCharsets.UTF_8))
            .collect(Collectors.joining("&"));
    String login = username + ":" + password;
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(getHttpAddress() + path))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header(
                "Authorization",
                "Basic " + Base64.getEncoder().encodeToString(login.getBytes(StandardCharsets.UTF_8)))
            .method(method, HttpRequest.BodyPublishers.ofString(body))
            .build();
    try {
      HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
      if (answer.statusCode() / 100 != 2) {
        throw new IllegalStateException(
            method + " " + path + " was refused with " + answer.statusCode() + ": " + answer.body());
      }
      return answer.body();
    } catch (IOException error) {
      throw new IllegalStateException(method + " " + path + " failed: " + error.getMessage(), error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(method + " " + path + " was interrupted", error);
    }
  }
}

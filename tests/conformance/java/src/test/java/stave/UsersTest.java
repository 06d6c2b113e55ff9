package stave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.couchbase.client.core.error.CouchbaseException;
import com.couchbase.client.core.error.GroupNotFoundException;
import com.couchbase.client.core.error.UserNotFoundException;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.UpsertOptions;
import com.couchbase.client.java.manager.user.AuthDomain;
import com.couchbase.client.java.manager.user.Group;
import com.couchbase.client.java.manager.user.Role;
import com.couchbase.client.java.manager.user.User;
import com.couchbase.client.java.manager.user.UserManager;
import com.couchbase.client.java.manager.user.UserAndMetadata;
import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Users and groups by the SDK's manager, and what their roles allow. */
class UsersTest {
  private static final String BUCKET = StrictCopy.env("STAVE_BUCKET");

  private static Cluster cluster;
  private static UserManager users;

  @BeforeAll
  static void connect() {
    cluster = StrictCopy.connect();
    users = cluster.users();
    cluster.bucket(BUCKET).waitUntilReady(Duration.ofSeconds(20));
  }

  @AfterAll
  static void disconnect() {
    cluster.disconnect();
  }

  private static String fresh() {
    return "java-" + UUID.randomUUID().toString().substring(0, 12);
  }

  private static Set<String> names(java.util.Collection<Role> roles) {
    return roles.stream().map(Role::name).collect(Collectors.toCollection(TreeSet::new));
  }

  @Test
  void aUserIsMadeReadListedAndDropped() {
    String name = fresh();
    User user = new User(name)
        .password("secret-1")
        .displayName("A name")
        .roles(new Role("data_reader", BUCKET), new Role("data_writer", BUCKET, "_default", "_default"));
    users.upsertUser(user);
    UserAndMetadata found = users.getUser(AuthDomain.LOCAL, name);
    assertEquals("A name", found.user().displayName());
    assertEquals(Set.of("data_reader", "data_writer"), names(found.user().roles()));
    assertTrue(users.getAllUsers().stream().anyMatch(other -> other.user().username().equals(name)));
    users.dropUser(name);
    assertThrows(UserNotFoundException.class, () -> users.dropUser(name));
  }

  @Test
  void aUserHasTheRolesOfItsGroups() {
    String name = fresh();
    String group = fresh();
    users.upsertGroup(new Group(group).description("readers").roles(new Role("data_reader", BUCKET)));
    assertEquals("readers", users.getGroup(group).description());
    users.upsertUser(new User(name).password("secret-1").groups(group));
    UserAndMetadata found = users.getUser(AuthDomain.LOCAL, name);
    assertEquals(Set.of("data_reader"), names(found.effectiveRoles()));
    users.dropUser(name);
    users.dropGroup(group);
    assertThrows(GroupNotFoundException.class, () -> users.getGroup(group));
  }

  @Test
  void aUserMayWhatItsRolesSay() {
    String name = fresh();
    String key = fresh();
    JsonObject body = JsonObject.create().put("a", 1);
    cluster.bucket(BUCKET).defaultCollection().upsert(key, body);
    users.upsertUser(new User(name).password("secret-1").roles(new Role("data_reader", BUCKET)));
    Cluster own = StrictCopy.connect(name, "secret-1", environment -> {});
    // A login at each node derives keys of the password: on a busy machine that takes longer than a read may.
    own.bucket(BUCKET).waitUntilReady(Duration.ofSeconds(20));
    Collection documents = own.bucket(BUCKET).defaultCollection();
    assertEquals(body, documents.get(key).contentAsObject());
    UpsertOptions brief = UpsertOptions.upsertOptions().timeout(Duration.ofSeconds(2));
    assertThrows(CouchbaseException.class, () -> documents.upsert(key, body, brief));
    own.users().changePassword("secret-2");
    own.disconnect();
    Cluster again = StrictCopy.connect(name, "secret-2", environment -> {});
    again.bucket(BUCKET).waitUntilReady(Duration.ofSeconds(20));
    assertEquals(body, again.bucket(BUCKET).defaultCollection().get(key).contentAsObject());
    again.disconnect();
    users.dropUser(name);
  }
}

package dev.stave;

import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A cluster for a class of JUnit 5 tests, reset before each; for a static field with {@code @RegisterExtension}. */
public final class StaveExtension implements BeforeAllCallback, BeforeEachCallback, AfterAllCallback {
  private final Stave.Options options;
  private Stave stave;

  public StaveExtension() {
    this(Stave.dev());
  }

  public StaveExtension(Stave.Options options) {
    this.options = options;
  }

  /** The cluster, from the first test on. */
  public Stave cluster() {
    if (stave == null) {
      throw new IllegalStateException(
          "the cluster does not run yet: register the extension with a static field, and ask in a test");
    }
    return stave;
  }

  @Override
  public void beforeAll(ExtensionContext context) {
    stave = options.start();
  }

  @Override
  public void beforeEach(ExtensionContext context) {
    cluster().reset();
  }

  @Override
  public void afterAll(ExtensionContext context) {
    stave.close();
    stave = null;
  }
}

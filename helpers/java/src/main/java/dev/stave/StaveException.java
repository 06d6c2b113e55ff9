package dev.stave;

/** The cluster did not start, or refused an order. */
public class StaveException extends RuntimeException {
  StaveException(String message) {
    super(message);
  }

  StaveException(String message, Throwable cause) {
    super(message, cause);
  }
}

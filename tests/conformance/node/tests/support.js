'use strict'
// One connection for a test file, fresh keys, and errors by their exact class.

const assert = require('node:assert/strict')
const { randomUUID } = require('node:crypto')
const couchbase = require('couchbase')

// The value of a variable that the run sets; a missing one is an error, not a skip.
function env(name) {
  const value = process.env[name]
  assert.ok(value, `${name} is not set`)
  return value
}

// With STAVE_CA by TLS: its certificates are trusted, and no other.
function connect(more = {}) {
  const ca = process.env.STAVE_CA
  return couchbase.connect(env('STAVE_CONN'), {
    username: env('STAVE_USER'),
    password: env('STAVE_PASSWORD'),
    timeouts: { kvTimeout: 10000, managementTimeout: 20000 },
    ...(ca && { security: { trustStorePath: ca } }),
    ...more,
  })
}

// A key or name that no other test and no earlier run on the same server has used.
function fresh(prefix) {
  return `${prefix}-${randomUUID().replaceAll('-', '').slice(0, 16)}`
}

// The operation fails with exactly this class of error.
async function fails(operation, errorClass) {
  await assert.rejects(operation, (error) => {
    assert.equal(error.constructor.name, errorClass.name, error.message)
    return true
  })
}

// Asks again until the operation succeeds or the deadline passes; the last error is thrown.
async function within(deadlineMs, operation) {
  const end = Date.now() + deadlineMs
  for (;;) {
    try {
      return await operation()
    } catch (error) {
      if (Date.now() > end) throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

module.exports = { connect, env, fails, fresh, within }

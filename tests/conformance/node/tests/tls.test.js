'use strict'
// Which servers the SDK trusts over TLS, and which certificates log in. That the name is the server's is not tried: this version
// of the SDK does not look at it (CXXCBC-838).

const assert = require('node:assert/strict')
const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const test = require('node:test')
const tls = require('node:tls')
const couchbase = require('couchbase')
const { env, fresh } = require('./support')

const skip = !process.env.STAVE_CA
// Longer than a client needs to find a server that it trusts.
const UNTRUSTED_MS = 3000

const password = () => new couchbase.PasswordAuthenticator(env('STAVE_USER'), env('STAVE_PASSWORD'))
// The administrator's certificate that a CA has signed, as `stave certs client` writes it.
const certificate = (folder) => new couchbase.CertificateAuthenticator(join(folder, 'client.pem'), join(folder, 'client.key'))

function trusting(conn, ca, authenticator) {
  const timeouts = { bootstrapTimeout: UNTRUSTED_MS, connectTimeout: UNTRUSTED_MS, kvTimeout: 10000 }
  return couchbase.connect(conn, { authenticator, timeouts, security: { trustStorePath: ca } })
}

async function refused(conn, ca, authenticator) {
  await assert.rejects(trusting(conn, ca, authenticator), couchbase.CouchbaseError)
}

test('another CA is not trusted', { skip }, async () => {
  await refused(env('STAVE_CONN'), env('STAVE_STRANGE_CA'), password())
})

test('an expired certificate is not trusted, and the server hears why', { skip }, async () => {
  const both = readFileSync(env('STAVE_EXPIRED'))
  const heard = []
  const note = (error) => heard.push(error.message)
  const server = tls.createServer({ cert: both, key: both }, (socket) => socket.on('error', note))
  server.on('tlsClientError', note)
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  await refused(`couchbases://127.0.0.1:${server.address().port}`, env('STAVE_CA'), password())
  await new Promise((resolve) => server.close(resolve))
  // A connection that is closed meanwhile says nothing.
  assert.ok(heard.some((why) => why.includes('certificate expired')), `heard: ${heard}`)
})

test('a certificate takes the place of a password', { skip }, async () => {
  const own = await trusting(env('STAVE_CONN'), env('STAVE_CA'), certificate(env('STAVE_CLIENT')))
  const [documents, key] = [own.bucket(env('STAVE_BUCKET')).defaultCollection(), fresh('js-tls')]
  await documents.upsert(key, { a: 1 })
  assert.deepEqual((await documents.get(key)).content, { a: 1 })
  await own.close()
})

test('a certificate of another CA does not', { skip }, async () => {
  await refused(env('STAVE_CONN'), env('STAVE_CA'), certificate(env('STAVE_STRANGE_CLIENT')))
})

// For dies_with_parent.py: it is killed while it waits.
require('..').dev().then(s => {
  console.log(s.pid)
  process.stdin.resume()
})

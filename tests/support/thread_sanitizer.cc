// Linked into each test program under ThreadSanitizer. gloo is in libtorch, which is not instrumented: the waits after
// which we destroy its buffers are not seen, so their ends look like races with the thread that filled them.
extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer::\n";
}

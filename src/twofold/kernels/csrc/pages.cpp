// Large pages for memory that is streamed: with small ones the processor looks up where a page lies every 4 KiB.
#include <stdint.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// Asks the system to keep what of these bytes fills whole large pages on such; it may not.
extern "C" __attribute__((visibility("default"))) void twofold_use_large_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (address + kPage - 1) / kPage * kPage, last = (address + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

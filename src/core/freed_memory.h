// What the allocator holds back.
#pragma once

namespace kvartet {

// Gives memory that was freed back to the system. The allocator (glibc) keeps much of it for later, up to tens of MB after
// buffers of that size came and went, and the process then looks larger than what lives in it. Takes a few ms at most; does
// nothing with other allocators.
void return_freed_memory();

}  // namespace kvartet

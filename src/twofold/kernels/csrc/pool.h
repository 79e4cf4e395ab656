// Threads, and scratch memory that a thread keeps.
#pragma once

#include <stdint.h>

// Calls work(context) on `threads` threads, this one among them, and returns when all are done. torch's own OpenMP
// pool serves where twofold_set_openmp was given its entry: two pools would spin against each other.
void run_on_threads(int64_t threads, void (*work)(void*), void* context);

// At least `count` floats, aligned to 64 bytes, that belong to the calling thread until it asks again.
// Null where there is no memory.
float* thread_scratch(int64_t count);

/*: # Two

A whole file. :*/
//> gamma
__device__ float gamma_of(float x) { return x * 2.0f; }
//< gamma
#define LIMIT (1 << 4)

#!/usr/bin/env python3
"""Writes a CUDA program that measures what an instruction costs in straight code of several sizes.

Each kernel is a loop over so many multiply-adds, four independent chains of them; the first turns are not timed. The shared
memory is asked for because the tape has it too: does it take room from the instructions? (It does not.)
"""
SIZES = [256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]  # instructions of 16 bytes
SHARED, TURNS, FIRST = 227 * 1024, 12, 2

print("#include <cstdint>\n#include <cstdio>")
body = " ".join("fma.rn.f32 %{0}, %{0}, %4, %5;".format(i % 4) for i in range(64))
for n in SIZES:
    print(f"""
__global__ void __launch_bounds__(1024, 1) k{n}(float *out, uint32_t *cycles, float m) {{
  extern __shared__ float unused[];
  float a = 1, b = 2, c = 3, d = 4;
  uint32_t begin = 0;
#pragma unroll 1
  for (int turn = 0; turn < {TURNS}; turn++) {{
    if (turn == {FIRST}) begin = clock();
#pragma unroll
    for (int i = 0; i < {n // 64}; i++)
      asm volatile("{body}" : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "f"(m), "f"(0.5f));
  }}
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock() - begin;
  out[threadIdx.x] = a + b + c + d + (m == 0 ? unused[threadIdx.x] : 0);
}}""")
print("""
int main() {
  float *out;
  uint32_t *cycles, first;
  cudaMalloc(&out, 4096);
  cudaMalloc(&cycles, 132 * 4);
  printf("code_kb\\tcycles_8_warps\\tcycles_12_warps\\n");""")
for n in SIZES:
    print(f"""  cudaFuncSetAttribute(k{n}, cudaFuncAttributeMaxDynamicSharedMemorySize, {SHARED});
  printf("{n * 16 // 1024}");
  for (int warps : {{8, 12}}) {{
    for (int i = 0; i < 2; i++) k{n}<<<132, warps * 32, {SHARED}>>>(out, cycles, 0.9f);
    cudaMemcpy(&first, cycles, 4, cudaMemcpyDeviceToHost);
    printf("\\t%.2f", first / {n * (TURNS - FIRST)}.0);
  }}
  printf("\\n");""")
print("""  printf("# %s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
}""")

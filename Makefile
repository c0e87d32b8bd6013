# The build, in the order of a reader's needs: `make run`, `make test`, then the parts of both.
# C11, every warning an error. One mechanism builds every variant: B is the folder of the objects, OPT
# is what makes that variant different. `make B=build/asan OPT='-O1 -g -fsanitize=address' tests`
# leaves the release build alone.

B      ?= build
OPT    ?= -O2 -g
CFLAGS += -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
          -Wvla -Werror
CXXFLAGS += -std=c++17 -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unknown-pragmas
LDLIBS += -lcjson -lpcre2-8 -lutf8proc -lpthread -lm

MODEL  ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
PROMPT ?= What is gravity?
TOKENS ?= 128
FUZZ_SECONDS ?= 60
export MODEL PROMPT TOKENS FUZZ_SECONDS

#> make-help
help:
	@echo 'make run     answer a prompt with a small real model, fetched once; PROMPT="..." asks another'
	@echo 'make test    everything that CI runs: tests, sanitizers, lint, $(FUZZ_SECONDS) s of fuzzing a parser'
	@echo 'make book    the book: build/book/html/index.html, tiles.epub, tiles.pdf'
	@echo 'make tiles   the program alone'
	@echo 'make chapters  every chapter'"'"'s decoder: build/ch03 MODEL and so on; make ch03 builds one'
	@echo 'make check   the tests of the release build alone, the book among them'
	@echo 'make lint    formatting and static analysis'
	@echo 'make fuzz    every fuzz harness for FUZZ_SECONDS each'
	@echo 'make asan    the tests under the address and undefined-behaviour sanitizers'
	@echo 'make tsan    the tests with threads under the thread sanitizer'
	@echo 'make clean   remove what was built; models stay'
#< make-help

#> make-run
run:
	@CUDA='$(CUDA)' sh tests/setup.sh install run
	@$(MAKE) --no-print-directory tiles
	@[ -e "$$MODEL" ] || sh tests/fetch_model.sh
	./tiles run "$$MODEL" --chat -n "$$TOKENS" -p "$$PROMPT"

test:
	@sh tests/setup.sh install test
	@bash tests/run.sh
#< make-run

#> make-objects
SOURCES := $(wildcard *.c)
OBJECTS := $(SOURCES:%.c=$(B)/%.o)
LIBRARY := $(filter-out $(B)/tiles.o,$(OBJECTS))

tiles: $(B)/tiles
	@ln -sf $(B)/tiles tiles

# With nvcc the program holds the GPU's kernels too; CUDA=no leaves them out. The variants for sanitizers never have them:
# there the kernels run as fibers, in tests/test_kernels.cpp.
NVCC       ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA       ?= $(if $(filter build,$(B)),$(if $(NVCC),yes,no),no)
CUDA_ARCHS ?= 80 86 89 90a 100 120
KERNELS    := $(if $(filter yes,$(CUDA)),$(B)/gpu.o $(B)/fingerprint.o)

# What B was built with last. The file is only written when CUDA is another one, and then all that holds kernels is made again.
$(B)/cuda: FORCE
	@[ "$$(cat $@ 2>/dev/null)" = '$(CUDA)' ] || { mkdir -p $(B) && echo '$(CUDA)' >$@; }
FORCE:

$(B)/tiles: $(OBJECTS) $(KERNELS) $(B)/cuda
ifeq ($(CUDA),yes)
	$(CXX) $(OPT) $(LDFLAGS) -o $@ $(filter %.o,$^) $(CUDA_LIBS)
else
	$(CC) $(OPT) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LDLIBS)
	@[ '$(B)' != build ] || echo 'built without the GPU kernels: $(if $(NVCC),CUDA=$(CUDA),no nvcc on the PATH or in /usr/local/cuda/bin)'
endif

#< make-objects

#> make-kernels
# One object with machine code for every card since sm_80, and PTX for those to come. 90a is sm_90 with what only Hopper has: warps that pass registers on. The small libraries are linked statically where
# Debian has them so, so that the program runs on a machine without them.
CUDA_LIBS = -lcjson -Wl,-Bstatic -lpcre2-8 -lutf8proc -Wl,-Bdynamic \
            -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt -lpthread -lm

$(B)/gpu.o: gpu.cu tiles_kernel.cu $(wildcard *.cuh) tiles.h | $(B)/ready
	@echo 'nvcc: gpu.cu for $(words $(CUDA_ARCHS)) architectures, some minutes'
	@"$(NVCC)" -O3 -std=c++17 -Xcompiler -Wall --threads 2 \
	  $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	  -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS)) \
	  $(NVCCFLAGS) -c -o $@ gpu.cu || { echo 'nvcc failed. If it says that the host compiler is not supported:' \
	  'make NVCCFLAGS="-ccbin g++-12". To leave the kernels out: make CUDA=no'; exit 1; }

# The kernels' fingerprint: a hash of the object that holds their machine code.
$(B)/fingerprint.o: $(B)/gpu.o
	@printf 'extern const char kernel_fingerprint_text[];\nconst char kernel_fingerprint_text[] = "%s";\n' \
	  "$$(sha256sum $< | cut -d ' ' -f 1)" >$(B)/fingerprint.c
	$(CC) $(OPT) -c -o $@ $(B)/fingerprint.c
#< make-kernels

#> make-rules
# The compiler itself writes down which headers an object depends on.
$(B)/%.o: %.c | $(B)/ready
	$(CC) $(OPT) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/%.o: tests/%.c | $(B)/ready
	$(CC) $(OPT) $(CFLAGS) -I. -MMD -MP -c -o $@ $<

$(B)/%.o: tests/%.cpp | $(B)/ready
	$(CXX) $(OPT) $(CXXFLAGS) -I. -MMD -MP -c -o $@ $<

# Whatever holds kernels wants a C++ compiler too.
$(B)/ready: tests/setup.sh $(B)/cuda
	@CUDA='$(CUDA)' sh tests/setup.sh check build
	@mkdir -p $(B) && touch $@
$(B)/chapters/ready: tests/setup.sh
	@sh tests/setup.sh check chapters
	@mkdir -p $(B)/chapters && touch $@

-include $(wildcard $(B)/*.d)
#< make-rules

#> make-tests
# tests/test_X.c is one cmocka program and tests/make_X.c a helper of the shell tests; each links
# every library object and all other files of tests/, which are what the tests share. Tests that start
# threads are those that open the workers.
TESTS    := $(patsubst tests/%.c,$(B)/%,$(wildcard tests/test_*.c))
TESTSCXX := $(patsubst tests/%.cpp,$(B)/%,$(wildcard tests/test_*.cpp))
HELPERS  := $(patsubst tests/%.c,$(B)/%,$(wildcard tests/make_*.c))
SHARED   := $(patsubst tests/%.c,$(B)/%.o,\
              $(filter-out tests/test_%.c tests/make_%.c tests/fuzz_%.c,$(wildcard tests/*.c)))
THREADED := $(patsubst tests/%.c,$(B)/%,$(shell grep -slE 'cpu_open|pthread_create' tests/test_*.c))

tests: $(TESTS) $(TESTSCXX) $(HELPERS)
threaded-tests: $(THREADED)

$(TESTS) $(HELPERS): $(B)/%: $(B)/%.o $(SHARED) $(LIBRARY)
	$(CC) $(OPT) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# tests/test_X.cpp runs CUDA code on the CPU, as fibers.
$(TESTSCXX): $(B)/%: $(B)/%.o $(LIBRARY)
	$(CXX) $(OPT) $(LDFLAGS) -o $@ $^ $(LDLIBS)

check asan tsan lint fuzz:
	@sh tests/setup.sh install test
	@bash tests/run.sh $@
#< make-tests

#> make-fuzz
# tests/fuzz_X.c is one libFuzzer harness; clang only, in a build folder of its own.
FUZZERS := $(patsubst tests/%.c,$(B)/%,$(wildcard tests/fuzz_*.c))

fuzzers: $(FUZZERS)

$(FUZZERS): $(B)/%: $(B)/%.o $(LIBRARY)
	$(CC) $(OPT) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(LDLIBS)
#< make-fuzz

#> make-book
# STRICT=1 makes numbers measured from another source than this one an error. DRAFT=1 weaves a book with parts missing.
book:
	@sh tests/setup.sh install book
	@sh chapters/book.sh
#< make-book

#> make-chapters
# A chapter's program is the library, the chapter's own file, and chapters/chapter.c, the main of those that decode. With nvcc the kernels are the card's; without,
# the same files are compiled for the CPU, where a grid is fibers.
CHAPTERS := 01 02 03 04 05 06 11 13 15
chapters: $(CHAPTERS:%=$(B)/ch%)
$(CHAPTERS:%=ch%): ch%: $(B)/ch%

CHAPTER_MAIN   := $(B)/chapters/chapter.o
CHAPTER_GRID   := $(if $(filter yes,$(CUDA)),$(KERNELS),$(B)/chapters/fibers.o)
chapter_object  = $(addprefix $(B)/,$(addsuffix .o,$(basename $(foreach f,$(wildcard chapters/$1-*.c chapters/$1-*.cu),$(if $(findstring -wrong-,$f),,$f)))))

$(foreach c,$(CHAPTERS),$(eval $(B)/ch$c: $(call chapter_object,$c)))
$(B)/ch01 $(B)/ch02: $(KERNELS)
$(B)/ch03 $(B)/ch04 $(B)/ch05 $(B)/ch06 $(B)/ch11 $(B)/ch13: $(CHAPTER_MAIN) $(CHAPTER_GRID)
$(B)/ch15: $(CHAPTER_MAIN)
$(CHAPTERS:%=$(B)/ch%): $(B)/chapters/stages.o $(LIBRARY) $(B)/cuda
	$(CXX) $(OPT) $(LDFLAGS) -o $@ $(filter %.o,$^) $(if $(filter yes,$(CUDA)),$(CUDA_LIBS),$(LDLIBS))

$(B)/chapters/%.o: chapters/%.c | $(B)/chapters/ready
	$(CC) $(OPT) $(CFLAGS) -I. -MMD -MP -c -o $@ $<

$(B)/chapters/%.o: chapters/%.cu $(wildcard chapters/*.cu chapters/*.h *.cuh) tiles_kernel.cu tiles.h tests/fiber.h $(B)/cuda | $(B)/chapters/ready
ifeq ($(CUDA),yes)
	"$(NVCC)" -O3 -std=c++17 -I. -Xcompiler -Wall $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	  -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS)) $(NVCCFLAGS) -c -o $@ $<
else
	$(CXX) $(OPT) $(CXXFLAGS) -I. -c -o $@ -x c++ $<
endif

$(B)/chapters/fibers.o: gpu.cu tiles_kernel.cu tape_kernel.cu $(wildcard *.cuh) tiles.h tests/fiber.h | $(B)/chapters/ready
	$(CXX) $(OPT) $(CXXFLAGS) -DKERNEL_FINGERPRINT='"fibers"' -I. -c -o $@ -x c++ gpu.cu

-include $(wildcard $(B)/chapters/*.d)
.PHONY: chapters $(CHAPTERS:%=ch%)
#< make-chapters

clean:
	rm -rf build tiles

# tiles is a link to the program of whichever B was asked for last.
.PHONY: help run test tiles tests threaded-tests check asan tsan lint fuzz fuzzers book clean

# `make` alone lists what can be made.
CC      ?= gcc
OPT     ?= -O2 -g
CFLAGS  += -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
LDLIBS  += -lcjson -lpcre2-8 -lutf8proc -lpthread -lm
B       := build

LIBSRC  := $(filter-out tiles.c,$(wildcard *.c))
LIBOBJ  := $(LIBSRC:%.c=$(B)/%.o)

help:
	@echo 'make run     answer a prompt with a small real model (fetches it once)'
	@echo 'make test    everything that CI runs'
	@echo 'make tiles   the program alone'

tiles: $(B)/tiles
	@ln -sf $(B)/tiles tiles

$(B)/tiles: $(B)/tiles.o $(LIBOBJ)
	$(CC) $(OPT) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/%.o: %.c tiles.h | $(B)
	$(CC) $(OPT) $(CFLAGS) -c -o $@ $<

# tests/test_X.c is one cmocka program; it links every library object.
$(B)/test_%: tests/test_%.c $(wildcard tests/*.h) tiles.h $(LIBOBJ)
	$(CC) $(OPT) $(CFLAGS) -I. -o $@ $< $(LIBOBJ) $(LDLIBS) -lcmocka

$(B):
	mkdir -p $@

clean:
	rm -rf $(B) tiles

.PHONY: help tiles clean

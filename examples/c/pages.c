// An engine in C that keeps its KV pages in a Manager and has them back in a new process:
//
//   orbitkv-c-pages save SOCKET      computes the pages of a prompt and saves them
//   orbitkv-c-pages restore SOCKET   finds them by their hashes, restores and compares
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "orbitkv/orbitkv.h"

enum { LAYERS = 4, BLOCKS = 32, PAGE = 4096, WAIT_MS = 30000 };

static unsigned char pages[LAYERS][BLOCKS][PAGE];  // of the engine; here in CPU memory
static uint32_t blocks[BLOCKS];                    // block i of the prompt is engine block blocks[i]
static orbitkv_hash hashes[BLOCKS];                // of the prompt up to block i

static int fail(const char* what, const orbitkv_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, orbitkv_action_name(error->action), error->message);
  return 1;
}

// Stands for the model: the page of a block follows from its hash.
static unsigned char computed(const orbitkv_hash* hash, int layer, size_t at) {
  return (unsigned char)(hash->bytes[at % sizeof hash->bytes] * 31u + (unsigned)layer * 7u +
                         (unsigned)at / 32u);
}

// A real engine chains a cryptographic hash over the tokens. The order of the engine's
// blocks is another one in each process.
static void make_prompt(uint32_t stride) {
  for (uint32_t i = 0; i < BLOCKS; ++i) {
    blocks[i] = i * stride % BLOCKS;
    for (size_t k = 0; k < sizeof hashes[i].bytes; ++k)
      hashes[i].bytes[k] = (uint8_t)(i * 131u + k * 29u + 1u);
  }
}

static orbitkv_client* attach(const char* socket, orbitkv_error* error) {
  orbitkv_options options = ORBITKV_OPTIONS_INIT;
  options.bootstrap_socket = socket;
  options.name = "engine in C";
  orbitkv_client* client = NULL;
  if (orbitkv_open(&options, &client, error) != ORBITKV_OK) return NULL;
  if (orbitkv_wait_connected(client, WAIT_MS, error) == ORBITKV_OK) return client;
  orbitkv_destroy(client);
  return NULL;
}

static orbitkv_action lend_memory(orbitkv_client* client, const orbitkv_instance* instance,
                                  orbitkv_registration* memory, orbitkv_error* error) {
  static const char* const names[LAYERS] = {"layer 0", "layer 1", "layer 2", "layer 3"};
  orbitkv_layer layers[LAYERS];
  for (int i = 0; i < LAYERS; ++i) {
    layers[i] = (orbitkv_layer)ORBITKV_LAYER_INIT;
    layers[i].name = names[i];
    layers[i].base = pages[i];
    layers[i].bytes = sizeof pages[i];
    layers[i].block_stride = PAGE;
    layers[i].row_bytes = PAGE;
  }
  orbitkv_memory description = ORBITKV_MEMORY_INIT;
  description.instance = *instance;
  description.name_space = "example in C, 4 layers of bytes";  // what the bytes mean
  description.num_blocks = BLOCKS;
  description.block_tokens = 16;
  description.layers = layers;
  description.layer_count = LAYERS;
  return orbitkv_register(client, &description, memory, error);
}

// An event loop with one descriptor; a real engine has its own sockets in it too.
static int run_until_done(orbitkv_client* client, orbitkv_operation operation) {
  struct pollfd loop = {.fd = orbitkv_completion_fd(client), .events = POLLIN};
  while (poll(&loop, 1, WAIT_MS) > 0) {
    orbitkv_operation ended[16];
    size_t count = orbitkv_take_completed(client, ended, 16);
    for (size_t i = 0; i < count; ++i) {
      if (ended[i].value != operation.value) continue;
      orbitkv_operation_status status = ORBITKV_OPERATION_STATUS_INIT;
      orbitkv_poll(client, ended[i], &status, NULL);
      orbitkv_drop(client, ended[i]);
      if (!status.success) fprintf(stderr, "operation: %s\n", status.message);
      return status.success ? 0 : 1;
    }
  }
  fprintf(stderr, "operation: not done after %d ms; its pages are still lent\n", WAIT_MS);
  return 1;
}

static orbitkv_query prompt_query(const orbitkv_instance* instance, const char* request) {
  orbitkv_query query = ORBITKV_QUERY_INIT;
  query.instance = *instance;
  query.hashes = hashes;
  query.hash_count = BLOCKS;
  query.request_id = request;
  return query;
}

// Saving is best effort (a pool under pressure drops pages), and what is done becomes
// visible a moment later: asks, and offers the pages again.
static int save_all(orbitkv_client* client, orbitkv_registration memory, const orbitkv_instance* instance) {
  orbitkv_error error;
  orbitkv_save_group group = ORBITKV_SAVE_GROUP_INIT;
  group.blocks = blocks;
  group.hashes = hashes;
  group.count = BLOCKS;
  orbitkv_save save = ORBITKV_SAVE_INIT;
  save.groups = &group;
  save.group_count = 1;
  const orbitkv_query query = prompt_query(instance, "saved?");
  for (int attempt = 0; attempt < 1000; ++attempt) {
    orbitkv_operation operation;
    if (orbitkv_start_save(client, memory, &save, &operation, &error)) return fail("save", &error);
    if (run_until_done(client, operation)) return 1;
    uint32_t found = 0;
    if (orbitkv_query_candidates(client, &query, &found, NULL, &error)) return fail("query", &error);
    if (found == BLOCKS) return 0;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  fprintf(stderr, "save: the Manager keeps dropping pages; is its pool large enough?\n");
  return 1;
}

static int restore_all(orbitkv_client* client, orbitkv_registration memory, const orbitkv_instance* instance,
                       uint32_t* hit) {
  orbitkv_error error;
  const orbitkv_query query = prompt_query(instance, "request 1");
  orbitkv_load load = ORBITKV_LOAD_INIT;
  orbitkv_hit found = ORBITKV_HIT_INIT;
  for (;; nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL)) {
    if (orbitkv_query_prefetch(client, &query, &found, &error)) return fail("query", &error);
    if (!found.loading) break;  // blocks that come from SSD are in memory now
  }
  *hit = found.blocks;
  if (*hit == 0) return 0;  // nothing is there, and nothing is leased
  load.lease = found.lease;
  load.blocks = blocks;
  load.block_count = *hit;
  orbitkv_restore restore = ORBITKV_RESTORE_INIT;
  restore.loads = &load;
  restore.load_count = 1;
  orbitkv_operation operation;
  if (orbitkv_start_restore(client, memory, &restore, &operation, &error)) return fail("restore", &error);
  return run_until_done(client, operation);
}

static void compute(void) {
  for (int layer = 0; layer < LAYERS; ++layer)
    for (uint32_t i = 0; i < BLOCKS; ++i)
      for (size_t at = 0; at < PAGE; ++at) pages[layer][blocks[i]][at] = computed(&hashes[i], layer, at);
}

static size_t wrong_bytes(uint32_t hit) {
  size_t wrong = 0;
  for (int layer = 0; layer < LAYERS; ++layer)
    for (uint32_t i = 0; i < hit; ++i)
      for (size_t at = 0; at < PAGE; ++at)
        wrong += pages[layer][blocks[i]][at] != computed(&hashes[i], layer, at);
  return wrong;
}

static int save_job(orbitkv_client* client, orbitkv_registration memory, const orbitkv_instance* instance) {
  make_prompt(5);
  compute();
  if (save_all(client, memory, instance)) return 1;
  printf("saved %d\n", BLOCKS);
  return 0;
}

static int restore_job(orbitkv_client* client, orbitkv_registration memory,
                       const orbitkv_instance* instance) {
  uint32_t hit = 0;
  make_prompt(11);
  if (restore_all(client, memory, instance, &hit)) return 1;
  printf("restored %u, wrong bytes %zu\n", (unsigned)hit, wrong_bytes(hit));
  return 0;
}

int main(int argc, char** argv) {
  const int saving = argc == 3 && strcmp(argv[1], "save") == 0;
  if (!saving && (argc != 3 || strcmp(argv[1], "restore") != 0)) {
    fprintf(stderr, "usage: %s save|restore SOCKET\n", argv[0]);
    return 2;
  }
  orbitkv_error error;
  orbitkv_client* client = attach(argv[2], &error);
  if (client == NULL) return fail("attach", &error);
  // A real engine makes a new random id at each start, for all of its ranks.
  const orbitkv_instance instance = {{(uint8_t)(saving ? 1 : 2)}};
  orbitkv_registration memory;
  int code = 1;
  if (lend_memory(client, &instance, &memory, &error) != ORBITKV_OK)
    fail("register", &error);
  else
    code = saving ? save_job(client, memory, &instance) : restore_job(client, memory, &instance);
  orbitkv_destroy(client);
  return code;
}

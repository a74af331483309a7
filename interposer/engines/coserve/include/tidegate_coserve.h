/* What an engine's plugin asks in each step that carries more than its users' requests: the C functions of
 * libtidegate_coserve.so. The library is loaded by the plugin and needs neither agent nor libtidegate.so.
 *
 * Functions return 0 or a code below zero, and write only to their arguments. Only tg_coserve_new allocates.
 * One thread at a time may use a handle. All times are ns since a moment of the caller's; fields named reserved are zero.
 *
 * Versions: functions are only added, and structures keep their size; TG_COSERVE_VERSION's minor grows with each. */
#ifndef TIDEGATE_COSERVE_H
#define TIDEGATE_COSERVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TG_COSERVE_VERSION 0x00020002u /* major times 65536, and minor */

#define TG_COSERVE_OK 0
#define TG_COSERVE_NO_HANDLE -1 /* a null pointer, or no handle */
#define TG_COSERVE_BAD_INPUT -2 /* a number that makes no sense */
#define TG_COSERVE_FAULT -3     /* a fault of the library's: the handle is not to be used any more */
#define TG_COSERVE_FULL -4      /* no room for another job */

struct tg_coserve;

struct tg_coserve_config {
    uint32_t kind;       /* 1: shares, in ten-thousandths of what it takes alone; 2: times */
    uint32_t ttft_share; /* of the mean time to first token */
    uint32_t tpot_share; /* of the mean time per further token */
    uint32_t late_permille;
    uint64_t ttft_ns;
    uint64_t tpot_ns;
    uint32_t margin_permille; /* left unused of a time */
    uint32_t batch_tokens;    /* of one pass; for tg_coserve_next, as the next two */
    uint32_t activations;
    uint32_t admit_every;
};

struct tg_coserve_seen {
    uint32_t kind; /* 1: arrived; 2: first token, after a; 3: ended, first token after a, each further one after b;
                      4: users came back after a, and waited b for background work */
    uint32_t reserved;
    uint64_t request, a, b;
};

/* What the next step holds, and who could ride in it. */
struct tg_coserve_ask {
    uint64_t now_ns;
    uint64_t users_cached;      /* cached tokens of the users that decode */
    uint64_t background_cached; /* of the background requests that could decode */
    uint32_t users;             /* that decode */
    uint32_t prompts;           /* users whose prompt waits or is being read */
    uint32_t background;        /* background requests that could decode */
    uint32_t prompt;            /* prompt tokens of background requests that could be read */
    uint32_t under_way;         /* steps under way, for which a user that comes waits */
    uint32_t reserved;
};

struct tg_coserve_rides {
    uint32_t rows;   /* background requests that decode */
    uint32_t prompt; /* prompt tokens of background requests */
};

/* A step that is over. */
struct tg_coserve_step {
    uint64_t now_ns, took_ns;
    uint64_t interval_ns; /* from the end of the one before */
    uint64_t users_cached, background_cached;
    uint32_t users, users_prompt; /* that decoded; prompt tokens read */
    uint32_t rows, prompt;        /* the same of background requests */
};

/* A pass beside which something is trained. tg_coserve_ran reads took_ns and trained_ns, tg_coserve_beside does not. */
struct tg_coserve_pass {
    uint64_t fingerprint, cached;
    uint32_t batch, prompt, forward, reserved;
    uint64_t now_ns, took_ns, trained_ns;
};

struct tg_coserve_planned {
    uint32_t fused, trainer;
};

struct tg_coserve_turn {
    uint32_t decodes, prompt, samples, activations;
    uint32_t next; /* 0: nothing; 1: decode; 2: a pass over prompt and samples; 3: backward */
};

/* How training is bounded. */
struct tg_coserve_rules {
    uint32_t chunk;       /* tokens of each piece of a sample, forward and backward; 0: what fits */
    uint32_t activations; /* tokens of samples that have begun and are not over */
    uint32_t strict;      /* 1: no unit while a user's request decodes or waits */
    uint32_t reserved;
};

/* What the next step holds, and what could be trained before it. */
struct tg_coserve_between {
    uint64_t now_ns;
    uint64_t users_cached; /* cached tokens of the users that decode */
    uint32_t users;        /* that decode */
    uint32_t prompts;      /* users whose prompt waits or is being read */
    uint32_t held;         /* tokens of samples that have begun and are not over */
    uint32_t next;         /* tokens of the sample that could begin next; 0: none */
    uint32_t kind;         /* of the unit that could run next. 1: rows of the loss; 2: rows of a layer's backward pass;
                              3: layers of an optimizer's step; 4: a publication; 0: none */
    uint32_t left;         /* rows that are left of it */
};

struct tg_coserve_granted {
    uint64_t wait_ns; /* nobody uses the engine: after so long it is worth asking again; 0: nothing changes by itself */
    uint32_t begins;  /* 1: the sample begins */
    uint32_t rows;    /* of the unit; 0: it does not run */
};

/* A sample whose keys and values are in blocks of the cache. */
struct tg_coserve_held {
    uint32_t before; /* tokens whose backward pass of the same job comes first; 0: it is under way */
    uint32_t tokens; /* its own */
};

/* A unit that is over. */
struct tg_coserve_unit {
    uint64_t ns;
    uint32_t kind, rows;
};

uint32_t tg_coserve_version(void);
int32_t tg_coserve_new(const struct tg_coserve_config *, struct tg_coserve **);
int32_t tg_coserve_free(struct tg_coserve *); /* once: afterwards the handle must not be used */

/* Background requests. */
int32_t tg_coserve_see(struct tg_coserve *, const struct tg_coserve_seen *, uint64_t now_ns);
int32_t tg_coserve_rides(struct tg_coserve *, const struct tg_coserve_ask *, struct tg_coserve_rides *);
int32_t tg_coserve_rode(struct tg_coserve *, const struct tg_coserve_step *);

/* Training. */
int32_t tg_coserve_beside(struct tg_coserve *, const struct tg_coserve_pass *, struct tg_coserve_planned *);
int32_t tg_coserve_ran(struct tg_coserve *, const struct tg_coserve_pass *, const struct tg_coserve_planned *);
int32_t tg_coserve_next(struct tg_coserve *, struct tg_coserve_turn *);
int32_t tg_coserve_job(struct tg_coserve *, uint64_t job, uint32_t weight);
int32_t tg_coserve_whose(struct tg_coserve *, const uint64_t *ready, uint32_t count, uint32_t *place);
int32_t tg_coserve_took(struct tg_coserve *, uint64_t job, uint64_t ns);

/* Training between two steps, since 2.1: one unit at a time is asked for, and told when it is over. */
int32_t tg_coserve_trains(struct tg_coserve *, const struct tg_coserve_rules *);
int32_t tg_coserve_grant(struct tg_coserve *, const struct tg_coserve_between *, struct tg_coserve_granted *);
int32_t tg_coserve_unit_ran(struct tg_coserve *, const struct tg_coserve_unit *);

/* Since 2.2: which sample gives its blocks to a user's request; its place among them, or count. */
int32_t tg_coserve_leaves(struct tg_coserve *, const struct tg_coserve_held *, uint32_t count, uint32_t *place);

#ifdef __cplusplus
}
#endif

#endif

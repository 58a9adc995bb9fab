/* kernels/graph/op/program.h: the programs of EXPR as expression graphs (dags): joined, simplified, differentiated,
 * and written back as postfix code. */
#pragma once

#include <stdbool.h>

#include "kernels/graph/op/op.h"

#define PK_DAG_MAX 400

/* Equal subexpressions are one node. Operands of a node are earlier nodes. */
struct pk_dag {
    int32_t count;
    bool full; /* more than PK_DAG_MAX nodes: the dag is invalid */
    struct {
        uint8_t op; /* enum pk_ex; never DUP */
        uint8_t arg;
        double imm;
        int32_t kid[3];
    } node[PK_DAG_MAX];
};

/* How many operands an instruction pops (0 for IN, CONST, DUP). */
int pk_ex_arity(enum pk_ex op);
/* "mul", "gelu", ...; static. */
const char *pk_ex_name(enum pk_ex op);
/* NULL if the program is valid for `inputs` inputs, else the fault. Static. */
const char *pk_expr_check(const struct pk_expr *program, int32_t inputs);

void pk_dag_init(struct pk_dag *d);
int32_t pk_dag_in(struct pk_dag *d, int input);
int32_t pk_dag_const(struct pk_dag *d, double value);
int32_t pk_dag_op(struct pk_dag *d, enum pk_ex op, int arg, int32_t a, int32_t b, int32_t c);
/* Adds a program whose input i is node in[i]; returns its result. */
int32_t pk_dag_load(struct pk_dag *d, const struct pk_expr *program, const int32_t *in);
/* ret[i] = seed times the derivative of `root` with respect to node wrt[i] (-1: zero). */
void pk_dag_diff(struct pk_dag *d, int32_t root, int32_t seed, const int32_t *wrt, int n, int32_t *ret);
/* Writes `root` as a program, inputs renumbered: program input j is the dag's input ret_used[j]. False if it exceeds
 * a limit of EXPR. */
bool pk_dag_store(const struct pk_dag *d, int32_t root, struct pk_expr *ret, uint8_t *ret_used, int *ret_n);

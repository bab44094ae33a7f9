/* What ranks of a host write for each other, and when they may overwrite it: announcements (Control::announcement), staging buffers
 * (Control::stage, src/comm/group/rounds.cc), and memory of map_shared() that reduce_shared() reads.
 *
 * wait.pml shows that every await() ends, so here it is a wait for a counter and no more. Comments with an @: see there.
 *
 * N ranks run OPS operations, and may have started RING of them before they run the oldest. A write and a read take two steps each, so
 * that another rank may come between.
 *
 * What is checked
 *   - nobody reads what is not whole, or is of another round or operation
 *   - nobody writes where somebody reads: so no memory that is not atomic is ever touched by two at once
 *   - all ranks come to their end */

#ifndef N
#define N 2
#endif
/* Operations: rounds, two of shared memory, barriers, rounds. */
#define OPS 7
#define MOVES(sequence) ((sequence) % 6 == 0)
#define SHARES(sequence) ((sequence) == 1 || (sequence) == 2)
#define ROUNDS 5
#define RING 3   /* kRing */
#define STAGES 3 /* kStages */
#define AHEAD 2  /* kAhead; less than STAGES */
#define NEXT ((me + 1) % N)
#define AFTER_NEXT ((me + 2) % N)
#define HALF 255 /* being written */

byte posted[N], finished[N], pushed[N], consumed[N];
/* Pieces of plain memory: what lies there, and how many read it. */
#define ANNOUNCED(sequence, r) ((r) * RING + (sequence) % RING)
#define STAGE(round, r) (N * RING + (r) * STAGES + (round) % STAGES)
#define SHARED(r) (N * (RING + STAGES) + (r))
byte memory[N * (RING + STAGES + 1)], readers[N * (RING + STAGES + 1)];

inline write(place, value) {
    d_step { assert(readers[place] == 0); memory[place] = HALF };
    d_step { assert(readers[place] == 0); memory[place] = value }
}
inline read(place, value) {
    d_step { assert(memory[place] == value); readers[place]++ };
    d_step { assert(memory[place] == value); readers[place]-- }
}

#if N == 3
#define ALL(counter, value) (counter[NEXT] >= (value) && counter[AFTER_NEXT] >= (value))
#else
#define ALL(counter, value) (counter[NEXT] >= (value))
#endif

inline post() {
#ifndef NO_ROOM
    if
    :: posted[me] >= RING -> ALL(finished, posted[me] - RING + 1) /*@ group/group.cc Group::post | if (sequence >= kRing) await(&RankState::done, sequence - kRing + 1); */
    :: else -> skip
    fi;
#endif
    if /* of an operation in shared memory the input is whole when it starts, and the one before is not read any more */
    :: SHARES(posted[me]) ->
#ifndef NO_INPUT_FREE
        if
        :: posted[me] == 2 -> ALL(finished, 2) /*@ group/group.cc Group::await_finished | await(&RankState::done, sequence + 1); */
        :: else -> skip
        fi;
#endif
        write(SHARED(me), posted[me] + 1)
    :: else -> skip
    fi;
#ifdef POSTED_FIRST
    posted[me]++;
    write(ANNOUNCED(posted[me] - 1, me), posted[me])
#else
    write(ANNOUNCED(posted[me], me), posted[me] + 1); /*@ group/group.cc Group::post | control_.announcement(sequence, rank_) = announcement; */
    posted[me]++                                                                     /*@ group/group.cc Group::post | publish(&RankState::posted, posted_); */
#endif
}

inline run_rounds() {
    do
    :: round < until ->
        do
        :: filled < until && filled < round + AHEAD -> fill() /*@ group/rounds.cc run_rounds | for (; filled < std::min(rounds, k + kAhead); ++filled) { */
        :: else -> break
        od;
        read_round(NEXT);
#if N == 3
        read_round(AFTER_NEXT);
#endif
        consumed[me] = round + 1; /*@ group/rounds.cc run_rounds | group.publish(&RankState::consumed, round + 1); */
        round++
    :: else -> break
    od
}

inline fill() {
#ifndef NO_CONSUMED
    if
#ifdef CONSUMED_TOO_FEW
    :: filled > STAGES -> ALL(consumed, filled - STAGES)
#else
    :: filled >= STAGES -> ALL(consumed, filled - STAGES + 1) /*@ group/rounds.cc run_rounds | if (round >= kStages) group.await(&RankState::consumed, round - kStages + 1); */
#endif
    :: else -> skip
    fi;
#endif
#ifdef WEAK_PUSH /* the counter is seen before what was written before it */
    pushed[me] = filled + 1;
    write(STAGE(filled, me), filled + 1);
#else
    write(STAGE(filled, me), filled + 1); /*@ group/rounds.cc run_rounds | fill(filled, group.control().stage(round, group.rank())); */
    pushed[me] = filled + 1;                                    /*@ group/rounds.cc run_rounds | group.publish(&RankState::pushed, round + 1); */
#endif
    filled++
}

inline read_round(peer) {
#ifndef NO_PUSHED
    pushed[peer] >= round + 1; /*@ group/rounds.cc stream | group.await(&RankState::pushed, round + 1, peer); */ /*@ group/rounds.cc reduce_slices | group.await(&RankState::pushed, round + 1); */ /*@ group/rounds.cc reduce_whole | group.await(&RankState::pushed, round + 1); */
#endif
#ifdef WEAK_CONSUME /* the counter is seen before the reads before it are made */
    consumed[me] = round + 1;
#endif
    read(STAGE(round, peer), round + 1) /*@ group/rounds.cc stream | copy_stage(group.control().stage(round, peer), k * kStageBytes, flows[static_cast<std::size_t>(peer)]); */
}

inline run_next() {
#ifndef NO_MEET
    ALL(posted, done + 1); /*@ group/group.cc Group::meet | await(&RankState::posted, sequence + 1); */
#endif
    read(ANNOUNCED(done, NEXT), done + 1); /*@ group/group.cc Group::check_agreement | if (r == rank_ || control_.rank(r).posted.load() <= current_) continue; */ /*@ group/group.cc Group::check_agreement | const Announcement& other = control_.announcement(current_, r); */
#ifdef FINISHED_FIRST
    finished[me] = done + 1;
#endif
    if
    :: MOVES(done) -> until = round + ROUNDS; run_rounds(); until = 0
    :: SHARES(done) ->
        read(SHARED(NEXT), done + 1);
#if N == 3
        read(SHARED(AFTER_NEXT), done + 1)
#endif
    :: else -> skip
    fi;
    finished[me] = done + 1; /*@ group/group.h | void finish(std::uint64_t sequence) { publish(&RankState::done, sequence + 1); } */
    done++
}

proctype Rank(byte me) {
    byte done, round, filled, until;
    do
    :: posted[me] < OPS && posted[me] - done < RING && (posted[me] != 2 || done == 2) -> post() /* wait_input_free() implies wait() */
    :: done < posted[me] -> run_next()
    :: done == OPS -> break
    od
}

init {
    atomic {
        run Rank(0);
        run Rank(1);
#if N == 3
        run Rank(2)
#endif
    }
}

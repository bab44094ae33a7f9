/* How ranks of a host wait for each other: src/comm/group/group.cc and the abort record of src/comm/shm/host.cc.
 *
 * A comment that begins with an @ names the file, the function and the statement of the code that a step stands for; check.py holds
 * these against the code. A step is what the model does at once: one load or one store of shared memory, or one call of the system.
 *
 * N ranks (2 or 3) run the operations of PLAN, in one or two groups, and leave. One fault may strike, at any step: a rank is killed,
 * leaves early, meets an error of its own, or stands still.
 *
 * What is checked
 *   - every wait ends: a rank that waits for ever is an invalid end state, one that looks for ever a cycle (-DENDS: ltl ends)
 *   - a counter that changes and a rank that leaves wake who waits for them: the 100 ms after which the code looks around by
 *     itself are granted for what nobody rings for (a failure elsewhere, a process that has ended) alone
 *   - who passes an operation has seen all its ranks start it; without a fault nobody sees an error
 *   - a rank is not taken for dead or gone when it had done its part; the record of a failure is read whole
 *
 * Steps are interleaved. That is all that can happen where every atomic is sequentially consistent (check.py looks) and no other
 * memory is touched by two at once (rounds.pml): then C++ promises it, on x86 and on Arm alike. The mutations WEAK_* show what a weaker
 * order would do. Left out: busy waiting, which only looks more often, what messages say, and the order in which peers are looked at. */

#ifndef N
#define N 2
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef FAULT_KILL
#define FAULT_KILL 0
#endif
#ifndef FAULT_STOP
#define FAULT_STOP 0
#endif
#ifndef FAULT_INTERRUPT
#define FAULT_INTERRUPT 0
#endif
#ifndef FAULT_LEAVE
#define FAULT_LEAVE 0
#endif
#ifndef FAULT_ERROR
#define FAULT_ERROR 0
#endif
#define NEXT ((me + 1) % N)
#define AFTER_NEXT ((me + 2) % N)
#define AT(g, r) ((g) * N + (r))
#define IN(g, r) ((g) == 0 || (r) < 2) /* group 1: ranks 0 and 1 */

/* RankState::posted and ::done */
#define POSTED 0
#define DONE 1
#define COUNT(counter, g, r) count[((counter) * GROUPS + (g)) * N + (r)]
byte count[2 * GROUPS * N];
byte bell[GROUPS * N];
bool sleepers[GROUPS * N], left[GROUPS * N];
bool asleep[GROUPS * N]; /* in the system's queue of this bell */

byte abort_state, abort_rank, abort_text; /* AbortRecord; instead of a text, by whom it was written */
#define NOBODY 9

bool ended[N];             /* the process, as its pidfd says */
bool killed[N], stands[N]; /* what strikes it */
bool interrupted[N];       /* Group::interrupted_ */
byte faults;               /* that have struck */
byte over;                 /* ranks that are through */

#define gone(g, r) (IN(g, r) && ended[r] && !left[AT(g, r)])
#if N == 2
#define someone_gone(g) gone(g, NEXT)
#define someone_stands stands[NEXT]
#else
#define someone_gone(g) (gone(g, NEXT) || gone(g, AFTER_NEXT))
#define someone_stands (stands[NEXT] || stands[AFTER_NEXT])
#endif

inline publish(g, counter, value) {
#ifndef WEAK_PUBLISH
    COUNT(counter, g, me) = value; /*@ group/group.cc Group::publish | (control_.rank(rank_).*counter).store(value); */
#endif
    ring(g, NEXT);
#if N == 3
    ring(g, AFTER_NEXT);
#endif
#ifdef WEAK_PUBLISH /* the store waits in a buffer while the loads behind it are made */
    COUNT(counter, g, me) = value
#endif
}

inline ring(g, peer) {
    if
    :: !IN(g, peer) -> skip
    :: IN(g, peer) && !sleepers[AT(g, peer)] -> skip /*@ group/group.cc Group::publish | if (peer.sleepers.load() == 0) continue; */
    :: IN(g, peer) && sleepers[AT(g, peer)] ->
#ifdef WAKE_BEFORE_BELL
        asleep[AT(g, peer)] = false;
        bell[AT(g, peer)]++
#else
#ifndef NO_BELL
        bell[AT(g, peer)]++; /*@ group/group.cc Group::publish | peer.bell.fetch_add(1); */
#endif
#ifndef NO_WAKE
        asleep[AT(g, peer)] = false /*@ group/group.cc Group::publish | futex_wake_all(peer.bell); */
#endif
#endif
    fi
}

/* ok: every peer's counter has the value. One load after the other. */
inline look(g, counter, value) {
    ok = !IN(g, NEXT) || COUNT(counter, g, NEXT) >= value; /*@ group/group.cc Group::reached | if (peer >= 0) return (control_.rank(peer).*counter).load() >= value; */ /*@ group/group.cc Group::reached | if (r != rank_ && (control_.rank(r).*counter).load() < value) return false; */
#if N == 3
    if
    :: ok && IN(g, AFTER_NEXT) -> ok = COUNT(counter, g, AFTER_NEXT) >= value
    :: else -> skip
    fi
#endif
}

inline check_health(g, counter, value) {
    if
    :: interrupted[me] -> goto leaving /*@ group/group.cc Group::check_interrupted | if (interrupted_.load()) throw Error(current_name() + ": given up, this rank leaves the group"); */
    :: !interrupted[me] -> skip
    fi;
#ifndef NO_ABORT_CHECK
    if
#ifdef TORN_ABORT
    :: abort_state != 0 ->
#else
    :: abort_state == 2 -> /*@ group/group.cc Group::check_health | if (host_->abort_record().is_set() && !reached(counter, value, peer)) fail_with_the_world(); */
#endif
        look(g, counter, value);
        if
        :: ok -> skip
        :: !ok ->
            assert(abort_rank != NOBODY && abort_text == abort_rank); /*@ group/group.cc Group::fail_with_the_world | fail(abort.rank, fmt::format("{}: another rank has failed. {}", current_name(), abort.text)); */
            goto failing
        fi
    :: else -> skip
    fi;
#endif
#ifndef NO_LEFT_CHECK
    check_left(g, counter, value, NEXT);
#if N == 3
    check_left(g, counter, value, AFTER_NEXT);
#endif
#endif
#ifndef NO_ALIVE_CHECK
    if /* once in 100 ms, so at first and after a wait that nobody ended */
    :: !must_look -> skip
    :: true -> /*@ group/group.cc Group::check_health | check_alive(counter, value); */
        check_alive(g, counter, value, NEXT);
#if N == 3
        check_alive(g, counter, value, AFTER_NEXT);
#endif
    fi;
#endif
    must_look = false
}

inline check_left(g, counter, value, peer) {
    if
    :: !IN(g, peer) || !left[AT(g, peer)] -> skip /*@ group/group.cc Group::check_health | if (r == rank_ || state.left.load() == 0 || (state.*counter).load() >= value) continue; */
    :: IN(g, peer) && left[AT(g, peer)] ->
        if
        :: COUNT(counter, g, peer) >= value -> skip
        :: COUNT(counter, g, peer) < value -> goto failing
        fi
    fi
}

inline check_alive(g, counter, value, peer) {
#ifdef ALIVE_AFTER_COUNTER
    ok = !IN(g, peer) || COUNT(counter, g, peer) >= value;
#endif
    if
    :: !IN(g, peer) || !ended[peer] -> skip /*@ group/group.cc Group::check_alive | if (r == rank_ || !host_->has_ended(members_[static_cast<std::size_t>(r)])) continue; */
    :: IN(g, peer) && ended[peer] ->
#ifndef ALIVE_AFTER_COUNTER
        ok = left[AT(g, peer)] || COUNT(counter, g, peer) >= value; /*@ group/group.cc Group::check_alive | if (state.left.load() != 0 || (state.*counter).load() >= value) continue;  // it had finished before it ended */
#endif
        if
        :: ok -> skip
        :: !ok -> assert(COUNT(counter, g, peer) < value); goto failing
        fi
    fi
}

inline await(g, counter, value) {
    look(g, counter, value); /*@ group/group.cc Group::await | if (reached(counter, value, peer)) return; */
    if
    :: ok -> skip
    :: !ok ->
#ifndef WEAK_SLEEP
        sleepers[AT(g, me)] = true; /*@ group/group.cc Group::await | Sleeping(Group& g, RankState& s) : group(g), state(s) { state.sleepers.store(1); } */ /*@ group/group.cc Group::await | state.sleepers.store(0); */
#endif
        must_look = true;
        do
        :: true ->
#ifndef LATE_BELL
            seen = bell[AT(g, me)]; /*@ group/group.cc Group::await | const std::uint32_t bell = own.bell.load(); */
#endif
            look(g, counter, value); /*@ group/group.cc Group::await | if (reached(counter, value, peer)) return; */
            if
            :: ok -> break
            :: !ok -> skip
            fi;
            check_health(g, counter, value); /*@ group/group.cc Group::await | check_health(counter, value, peer); */
            if /* the time that an operation may take is over; granted where a rank stands still */
            :: late -> goto failing /*@ group/group.cc Group::await | if (left.count() < 0) fail_timeout(counter, value, peer); */
            :: !late -> skip
            fi;
#ifdef WEAK_SLEEP /* the store leaves its buffer when the system is called */
            sleepers[AT(g, me)] = true;
#endif
#ifdef LATE_BELL
            seen = bell[AT(g, me)];
#endif
            atomic { /*@ group/group.cc Group::await | futex_wait(own.bell, bell, std::min(kLivenessInterval, left + std::chrono::milliseconds(1))); */
                asleep[AT(g, me)] = bell[AT(g, me)] == seen;
                seen = 0;
                ok = false
            }
            if
            :: atomic { !asleep[AT(g, me)] -> skip }
            :: atomic { asleep[AT(g, me)] && (abort_state == 2 || someone_gone(g) || someone_stands) ->
                asleep[AT(g, me)] = false; must_look = true; late = someone_stands }
            fi
        od;
        skip;
        d_step { sleepers[AT(g, me)] = false; must_look = false; late = false; seen = 0 }
    fi;
    ok = false
}

/* One operation of a group, begun, met and finished. `sequence` is its number in the group. */
inline operation(g, sequence) {
    publish(g, POSTED, sequence + 1); /*@ group/group.cc Group::post | publish(&RankState::posted, posted_); */
    await(g, POSTED, sequence + 1);   /*@ group/group.cc Group::meet | await(&RankState::posted, sequence + 1); */
    assert(COUNT(POSTED, g, 0) > sequence && COUNT(POSTED, g, 1) > sequence && (!IN(g, N - 1) || COUNT(POSTED, g, N - 1) > sequence));
    publish(g, DONE, sequence + 1)    /*@ group/group.h | void finish(std::uint64_t sequence) { publish(&RankState::done, sequence + 1); } */
}

inline leave(g) {
    if
    :: IN(g, me) ->
#ifdef LEFT_LAST
        publish(g, POSTED, COUNT(POSTED, g, me));
        left[AT(g, me)] = true
#else
        left[AT(g, me)] = true;                  /*@ group/group.cc Group::~Group | control_.rank(rank_).left.store(1); */
        publish(g, POSTED, COUNT(POSTED, g, me)) /*@ group/group.cc Group::~Group | publish(&RankState::posted, posted_);  // wakes whoever waits, so that it sees that this rank has left */
#endif
    :: else -> skip
    fi
}

/* A rank's own error, or one that it saw. */
inline tell_all() {
    atomic { /*@ shm/host.cc AbortRecord::set | if (!state.compare_exchange_strong(none, 1)) return; */
#ifdef NO_CAS
        ok = true; abort_state = 1
#else
        ok = abort_state == 0;
        if
        :: ok -> abort_state = 1
        :: !ok -> skip
        fi
#endif
    }
    if
    :: ok ->
        abort_rank = me; /*@ shm/host.cc AbortRecord::set | rank = by; */
        abort_text = me; /*@ shm/host.cc AbortRecord::set | std::memcpy(text, why.data(), n); */
        abort_state = 2; /*@ shm/host.cc AbortRecord::set | state.store(2); */
        ok = false
    :: !ok -> skip
    fi
}

inline may_be_hurt() {
    if
    :: atomic { FAULT_LEAVE && faults < FAULTS -> faults++ }; goto leaving
    :: atomic { FAULT_ERROR && faults < FAULTS -> faults++ }; goto failing
    :: atomic { FAULT_INTERRUPT && me == 1 -> faults++ }; goto alive
    :: !(FAULT_INTERRUPT && me == 1) -> skip
    fi
}

proctype Rank(byte me) {
    byte seen;
    bool ok, must_look, late;
    {
#if GROUPS == 1
        may_be_hurt();
        operation(0, 0);
#if N == 2
        may_be_hurt();
        operation(0, 1);
        await(0, DONE, 2); /*@ group/group.cc Group::await_finished | await(&RankState::done, sequence + 1); */
#endif
#else
        if
        :: IN(1, me) -> operation(1, 0)
        :: else -> skip
        fi;
        may_be_hurt();
        operation(0, 0);
#endif
        if
        :: true -> goto leaving
        :: true -> goto alive /* peers shall need nothing that it does later */
        fi;
    failing:
        assert(faults > 0);
        d_step { seen = 0; must_look = false; late = false; ok = false };
        tell_all(); /*@ group/group.cc Group::fail | host_->abort_record().set(world_rank, message); */
        if
        :: true -> skip       /* the exception ends the communicators */
        :: true -> goto alive /* it is caught, and they live on */
        fi;
    leaving:
        skip;
        d_step { sleepers[AT(0, me)] = false; sleepers[AT(GROUPS - 1, me)] = false };
#if GROUPS == 2
        leave(1);
#endif
        leave(0);
        if
        :: true -> ended[me] = true
        :: true -> skip /* the process lives on */
        fi;
    alive:
        skip
    } unless {
        if
        :: atomic { killed[me] -> ended[me] = true }
        :: stands[me] -> skip
        fi
    };
    d_step { seen = 0; must_look = false; late = false; ok = false; over++ }
}

#if FAULT_INTERRUPT
/* Another thread of rank 0, which waits for one that does not come. */
active proctype Interrupt() {
    interrupted[0] = true; /*@ group/group.cc Group::interrupt | interrupted_.store(true); */
#ifndef NO_BELL_OF_INTERRUPT
    bell[0]++;             /*@ group/group.cc Group::interrupt | own.bell.fetch_add(1); */
#endif
    asleep[0] = false      /*@ group/group.cc Group::interrupt | futex_wake_all(own.bell); */
}
#endif

#if FAULT_KILL || FAULT_STOP
/* Strikes one rank, whenever. */
active proctype Fate() {
    byte victim;
    select(victim : 0 .. N - 1);
    if
    :: atomic { FAULT_KILL && faults < FAULTS -> faults++; killed[victim] = true }
    :: atomic { FAULT_STOP && faults < FAULTS -> faults++; stands[victim] = true }
    :: true -> skip
    fi;
    victim = 0
}
#endif

init {
    abort_rank = NOBODY;
    abort_text = NOBODY;
    atomic {
        run Rank(0);
        run Rank(1);
#if N == 3
        run Rank(2)
#endif
    }
}

#ifdef ENDS
ltl ends { <> (over == N) }
#endif

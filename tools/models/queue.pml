/* The two threads of a rank that take turns at a group: src/comm/group/operation_queue.cc. Comments with an @: see wait.pml.
 *
 * Two ranks start three operations: two that progress by themselves and need both ranks (they move data), and one that runs when it is waited
 * for and needs of the other rank only that it has started it (reduce_shared). Rank 0 then does something else, which ends when rank 1
 * has waited for all three: whatever rank 1 needs of rank 0 must come without rank 0's caller.
 * -DTWO: without the last one. -DGONE: rank 1 starts nothing, and rank 0 gives up with its operations on their way.
 *
 * What is checked
 *   - one thread at a time uses the group
 *   - what is started is told to the peers, and progresses, without its caller; nobody waits for ever, and the end of the queue ends its thread */

#ifdef TWO
#define OPS 2
#else
#define OPS 3
#endif
#define OWN 2 /* operations 0 and 1 progress by themselves */

#define CALLER 0
#define THREAD 1
#define AT(rank, thread) ((rank) * 2 + (thread))

bool locked[2], taken[2], stopping[2], interrupted[2];
byte started[2], announced[2], done[2], wanted[2]; /* done: finished_ */
bool sleeps[4];                                    /* in changed_ (the caller), in own_work_ (the thread) */
byte in_group[2];
bool gave_up[2], thread_over[2], thread_there[2];
byte posted[2], arrived[2]; /* the group's: operations started; those whose data this rank has moved */
bool rank_1_is_through;

inline lock() { atomic { !locked[me] -> locked[me] = true } }
inline unlock() { locked[me] = false }
/* condition_variable::wait: unlocks and sleeps at once, and has the lock when it returns. */
inline sleep_in(thread) {
    atomic { locked[me] = false; sleeps[AT(me, thread)] = true };
    atomic { !sleeps[AT(me, thread)] && !locked[me] -> locked[me] = true }
}
inline notify(thread) { sleeps[AT(me, thread)] = false }

#define own_work (!gave_up[me] && done[me] < wanted[me])

inline take_turn() {
    taken[me] = true; /*@ group/operation_queue.cc OperationQueue::use_turn | taken_ = true; */
    unlock();
    in_group[me]++;
    assert(in_group[me] == 1)
}
inline give_turn(failed) {
    in_group[me]--;
    lock();
    atomic { taken[me] = false; gave_up[me] = gave_up[me] || failed }; /*@ group/operation_queue.cc OperationQueue::use_turn | taken_ = false; */
#ifndef NO_CHANGED
    notify(CALLER); /*@ group/operation_queue.cc OperationQueue::use_turn | changed_.notify_one(); */
#endif
#ifndef NO_OWN_WORK
    if
    :: own_work -> notify(THREAD) /*@ group/operation_queue.cc OperationQueue::use_turn | if (has_own_work()) own_work_.notify_one(); */
    :: else -> skip
    fi
#endif
}

inline announce_started() {
    do
    :: announced[me] < started[me] && !gave_up[me] -> /*@ group/operation_queue.cc OperationQueue::announce_started | while (announced_ < started_ && !failure_) { */
        take_turn();
        posted[me]++; /*@ group/operation_queue.cc OperationQueue::announce_started | use_turn(lock, [&] { group_.post(announcement); }); */
        give_turn(false);
        announced[me]++ /*@ group/operation_queue.cc OperationQueue::announce_started | ++announced_; */
    :: else -> break
    od
}

inline run_next() {
    announce_started(); /*@ group/operation_queue.cc OperationQueue::run_next | announce_started(lock); */
    if
    :: gave_up[me] -> skip
    :: else ->
        take_turn();
        if
        :: posted[1 - me] > done[me] -> /*@ group/operation_queue.cc OperationQueue::run_next | group_.meet(sequence); */
            if
            :: done[me] < OWN -> arrived[me]++; arrived[1 - me] > done[me] || interrupted[me] /*@ group/operation_queue.cc OperationQueue::run_next | run(); */
            :: else -> skip
            fi
        :: interrupted[me] -> skip
        fi;
        give_turn(interrupted[me]);
        if
        :: gave_up[me] -> skip
        :: else -> done[me]++ /*@ group/operation_queue.cc OperationQueue::run_next | ++finished_; */
        fi
    fi
}

inline wait_for(sequence) {
    lock();
    do
    :: done[me] > sequence || gave_up[me] -> break /*@ group/operation_queue.cc OperationQueue::wait | while (finished_ <= sequence) { */
    :: else ->
        if
        :: taken[me] -> sleep_in(CALLER) /*@ group/operation_queue.cc OperationQueue::wait | changed_.wait(lock); */
        :: else -> run_next()            /*@ group/operation_queue.cc OperationQueue::wait | run_next(lock); */
        fi
    od;
    unlock()
}

inline start(by_itself) {
    lock();
    started[me]++; /*@ group/operation_queue.cc OperationQueue::start | ++started_; */
    if
#ifdef ALWAYS_ANNOUNCE
    :: true -> announce_started()
#else
    :: !taken[me] -> announce_started() /*@ group/operation_queue.cc OperationQueue::start | if (!taken_) announce_started(lock); */
#endif
    :: taken[me] -> skip
    fi;
    if
    :: by_itself ->
        wanted[me] = started[me]; /*@ group/operation_queue.cc OperationQueue::start | wanted_ = started_; */
        if
        :: !thread_there[me] -> thread_there[me] = true; run Thread(me) /*@ group/operation_queue.cc OperationQueue::start | if (!thread_.joinable()) thread_ = start_quiet_thread("tessera-comm", [this] { serve(); }); */
        :: else -> skip
        fi;
        unlock();
#ifndef NO_NOTIFY_AT_START
        notify(THREAD) /*@ group/operation_queue.cc OperationQueue::start | own_work_.notify_one(); */
#endif
    :: else -> unlock()
    fi
}

inline stop() {
    lock();
    stopping[me] = true; /*@ group/operation_queue.cc OperationQueue::stop | stopping_ = true; */
    unlock();
    if
    :: thread_there[me] ->
#ifndef NO_INTERRUPT
        interrupted[me] = true; /*@ group/operation_queue.cc OperationQueue::stop | group_.interrupt(); */
#endif
        notify(THREAD);         /*@ group/operation_queue.cc OperationQueue::stop | own_work_.notify_one(); */
        thread_over[me]         /*@ group/operation_queue.cc OperationQueue::stop | thread_.join(); */
    :: else -> skip
    fi
}

proctype Thread(byte me) {
    lock();
    do /*@ group/operation_queue.cc OperationQueue::serve | own_work_.wait(lock, [this] { return stopping_ || (has_own_work() && !taken_); }); */
    :: stopping[me] -> break /*@ group/operation_queue.cc OperationQueue::serve | if (stopping_) return; */
    :: !stopping[me] && own_work && !taken[me] ->
        run_next(); /*@ group/operation_queue.cc OperationQueue::serve | run_next(lock); */
#ifndef NO_ANNOUNCE
        announce_started() /*@ group/operation_queue.cc OperationQueue::serve | announce_started(lock);  // what was started meanwhile, which may be nobody's own work */
#endif
    :: else -> sleep_in(THREAD)
    od;
    unlock();
    thread_over[me] = true
}

proctype Caller(byte me) {
#ifdef GONE
    if
    :: me == 0 -> start(true); start(true)
    :: else -> skip
    fi;
#else
    start(true);
    start(true);
    if
    :: true -> wait_for(0)
    :: true -> skip
    fi;
#ifndef TWO
    start(false);
#endif
    if
    :: me == 0 -> rank_1_is_through
    :: else -> wait_for(OPS - 1); wait_for(0); rank_1_is_through = true
    fi;
    wait_for(OPS - 1);
    assert(done[me] == OPS);
#endif
    stop()
}

init {
    atomic {
        run Caller(0);
        run Caller(1)
    }
}

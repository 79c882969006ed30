-- The ownership protocol of the directory and its agents (docs/internals/coherence.md), as a model
-- for rumur. tests/model/check runs it: configurations that have to pass, and for each rule that is
-- left out (BROKEN) one that has to fail.
--
-- One home, A agents that run operations, and one that has extents at first and runs none. An
-- operation's number is its age. Operations are sent in any order, to any agent; what they reach is
-- found in steps.
--
-- What is left out of the model:
--   The phases of one transaction (Yield, Ready, Done) are one variable, since they follow each
--   other. Release, Invalidate and Get overlap with what comes after, and are their own. Any delay
--   is possible.
--   A Get that is under way and one that waits at the home are the same; after an urge the home
--   takes no younger one first.
--   What was fetched ahead of an operation is not kept for it from other hints: that is a matter of
--   time.
--   Duplicates of Yield, Ready, Release and Invalidate are dropped by their number by construction;
--   11 shows what it is for.
--   A hash is equal where the version is; a first touch is a take from the agent that runs none;
--   nothing is freed. Those are in tests/unit/directory (explore, simulate), with the code itself.
-- Progress: no state is stuck; operation 0 asks once for an extent, the others less than 8 times.
--
-- BROKEN leaves out:
--    1 a Yield waits for older claims
--    2 the giver keeps the bytes until Done
--    3 an older request urges
--    4 replicas are gone before the owner gives
--    5 younger claims yield
--    6 claims are made in the step of arrival
--    7 what waits for a younger operation is not sent before
--    8 an Invalidate waits for older readers
--    9 Retained is used only if equal
--   10 a Release matches the present giving
--   11 duplicates are told by number
--   12 all that wait claim on arrival
--   13 after an urge nobody younger is first
--   14 what is asked for ahead acts with no age
const
  A: 2;        -- agents that run operations; agent A runs none
  P: 2;        -- extents
  N: 3;        -- operations; the number is the age, 0 the oldest; N: nobody, infinitely young
  R: 2;        -- extents that one operation may reach
  INIT: 0;     -- who has the extents at first: 0: agent A; 1: agent 0; 2: agents in turns
  SHARE: 0;    -- 1: operations may need an extent only to read it
  GETS: 0;     -- Gets that no operation sends: of the home (hints), or sent twice
  DUPS: 0;     -- other messages that arrive twice
  FIXED: 0;    -- 1: operation n runs at agent n mod A
  ROT: 0;      -- 1: operation 0 waits for the younger operation 1 before it is sent
  SPINS: 0;    -- 1: operation 1 does not end before operation 2 has ended. Both are at agent 0.
               -- Operation 0 is at another one and does not arrive before that
  BARS: 0;     -- 1: a Yield that waits lets no new younger claim in
  BROKEN: 0;   -- the rule that is left out; the list is above
type
  worker: 0..A-1; agent: 0..A; operation: 0..N-1; age: 0..N; extent: scalarset(P);
  stamp: 0..N;
  mode: enum {No, Shared_, Own};
  extent_state: enum {Absent, Taking, Owned, OwnedShared, Shared, Given, Retained};
  operation_state: enum {Unsent, Sent, Acquiring, Submitted, Complete};
  phase_kind: enum {Rest, Recalling, Yielding, OnItsWay, Arrived};
  ghost_kind: enum {GNone, GYield, GReady, GRelease, GInv};
var
  state: array[agent] of array[extent] of extent_state;
  bytes: array[agent] of array[extent] of stamp;
  version: array[extent] of stamp;                 -- ghost: last completed write
  progress: array[operation] of operation_state;
  place: array[operation] of worker;
  need: array[operation] of array[extent] of mode;
  claim: array[operation] of array[extent] of boolean;
  asked: array[operation] of array[extent] of boolean;  -- Get sent
  asks: array[operation] of array[extent] of 0..8;      -- ghost
  request: array[operation] of array[extent] of mode;    -- at the home or on its way to it
  hint: array[operation] of array[extent] of mode;       -- asked for ahead
  ahead: array[extent] of boolean;                       -- the transaction serves such a hint
  owner: array[extent] of agent;
  replica: array[agent] of array[extent] of boolean;
  phase: array[extent] of phase_kind;
  -- the oldest request that the home knows to be waiting
  urged: array[extent] of age;
  served: array[extent] of age; acting: array[extent] of age;
  taker: array[extent] of agent; taken: array[extent] of mode;
  recalled: array[agent] of array[extent] of boolean;   -- Invalidate sent, not acked
  release: array[agent] of array[extent] of boolean; -- Release on its way, for the Given it is in
  late_release: array[agent] of array[extent] of boolean; -- Release on its way, for an earlier one
  held: array[extent] of boolean;           -- the Yield has been looked at, and waits
  gets: 0..GETS; dups: 0..DUPS;
  copied: ghost_kind; copied_extent: extent; copied_at: agent;

function usable(s: extent_state): boolean; begin return s = Owned | s = OwnedShared | s = Shared;
end;
function suits(n: operation; p: extent): boolean;
begin
  if need[n][p] = Own then return state[place[n]][p] = Owned; end;
  return usable(state[place[n]][p]);
end;
function reach_of(n: operation): 0..P;
var c: 0..P;
begin c := 0; for p: extent do if need[n][p] != No then c := c + 1; end; end; return c; end;
function acting_age(p: extent): age;   -- the age that a Yield acts with
begin
  if acting[p] < N & progress[acting[p]] = Complete then return served[p]; end;
  return acting[p];
end;
function any_recalled(p: extent): boolean;
begin for a: agent do if recalled[a][p] then return true; end; end; return false; end;
function any_replica(p: extent): boolean;
begin for a: agent do if replica[a][p] then return true; end; end; return false; end;
function any_asked(a: agent; p: extent): boolean;
begin for m: operation do if place[m] = a & asked[m][p] then return true; end; end; return false;
end;
-- may agent a give p up to an operation of age e?  w: only writers are in the way (mode share)
function may_go(a: agent; p: extent; e: age; w: boolean): boolean;
begin
  for m: operation do
    if progress[m] != Unsent & place[m] = a & (!w | need[m][p] = Own) & need[m][p] != No then
      if progress[m] = Submitted then return false; end;
      if claim[m][p] & ((m <= e & BROKEN != 1) | BROKEN = 5) then return false; end;
    end;
  end;
  return true;
end;
-- a Yield that waits lets no younger claim in
function barred(n: operation; p: extent): boolean;
begin
  return held[p] & owner[p] = place[n] & n > acting_age(p) & (taken[p] = Own | need[n][p] = Own);
end;
procedure wound(a: agent; p: extent; e: age; w: boolean);
begin
  for m: operation do
    if progress[m] != Unsent & place[m] = a & claim[m][p] & (!w | need[m][p] = Own) then
      assert m > e "a claim is lost to a younger operation";
      assert progress[e] != Complete "a claim is lost to an operation that is complete";
      assert progress[m] != Submitted "a submitted operation loses an extent";
      claim[m][p] := false;
    end;
  end;
end;
procedure arrive(b: agent; p: extent; n: age; m: mode);
begin
  for k: operation do
    if progress[k] != Unsent & place[k] = b & asked[k][p] & (m = Own | need[k][p] = Shared_) then
        asked[k][p] := false; end;
  end;
  -- every operation here that waits for the extent claims it in the same step, not only n
  if BROKEN != 6 then
    for k: operation do
      if (progress[k] = Acquiring | (progress[k] = Sent & k = n & BROKEN = 14)) & place[k] = b
          & need[k][p] != No & (m = Own | need[k][p] = Shared_)
         & (BROKEN != 12 | k = n) then claim[k][p] := true; end;
    end;
  end;
end;
procedure close_transaction(p: extent);
begin
  if urged[p] < N then if request[urged[p]][p] = No then urged[p] := N; end; end;
  phase[p] := Rest; served[p] := N; acting[p] := N; taker[p] := A; taken[p] := No; held[p] := false;
  ahead[p] := false;
end;
procedure leave_frame(a: agent; p: extent);   -- the frame is of no more use but as a Retained
begin
  if any_asked(a, p) then state[a][p] := Taking;
  else state[a][p] := Retained; end;
end;
procedure drop(a: agent; p: extent);
begin state[a][p] := Absent; bytes[a][p] := 0; end;
procedure copy_message(k: ghost_kind; p: extent; a: agent);
begin
  if dups > 0 & copied = GNone then copied := k; copied_extent := p; copied_at := a; end;
end;

-- operations ---------------------------------------------------------------------------------
ruleset n: operation; a: worker; p: extent; m: mode do
  rule "home sends an operation" progress[n] = Unsent & m != No & (SHARE = 1 | m = Own)
      & (SPINS = 0 | n = 0 & a != 0 | n > 0 & a = 0) & (FIXED = 0 | a = n % A)
      & (ROT = 0 | n != 0 | BROKEN = 7 | progress[1] = Complete) ==>
  begin progress[n] := Sent; place[n] := a; need[n][p] := m; end;
end;
ruleset n: operation do
  rule "arrives" progress[n] = Sent & (SPINS = 0 | n != 0 | progress[2] = Complete) ==>
  begin
    progress[n] := Acquiring;
    for p: extent do if need[n][p] != No & suits(n, p) & !barred(n, p) & BROKEN != 6 then
        claim[n][p] := true; end; end;
  end;
  rule "submit" progress[n] = Acquiring & (ROT = 0 | n != 0 | progress[1] = Complete)
      & forall p: extent do need[n][p] = No | claim[n][p] end ==>
  begin
    progress[n] := Submitted;
    for p: extent do if need[n][p] != No then
      assert suits(n, p) "submitted without its extent";
      assert bytes[place[n]][p] = version[p] "submitted on stale bytes";
    end; end;
  end;
  rule "complete" progress[n] = Submitted & (SPINS = 0 | n != 1 | progress[2] = Complete) ==>
  begin
    progress[n] := Complete;
    for p: extent do if need[n][p] != No then
      assert suits(n, p) "extent left under a submitted operation";
      assert bytes[place[n]][p] = version[p] "ran on stale bytes";
      if need[n][p] = Own then version[p] := version[p] + 1; bytes[place[n]][p] := version[p]; end;
      claim[n][p] := false; asked[n][p] := false; asks[n][p] := 0; need[n][p] := No;
    end; end;
    place[n] := 0;
  end;
end;
ruleset n: operation; p: extent; m: mode do
  rule "finds hidden reach" progress[n] = Acquiring & m != No & (SHARE = 1 | m = Own)
      & need[n][p] = No & reach_of(n) < R
      & exists z: extent do claim[n][z] end ==>
  begin
    need[n][p] := m;
    if suits(n, p) & !barred(n, p) & BROKEN != 6 then claim[n][p] := true; end;
  end;
end;
ruleset n: operation; p: extent do
  rule "claims what is here" progress[n] = Acquiring & need[n][p] != No & !claim[n][p]
      & suits(n, p) & !barred(n, p) ==>
  begin claim[n][p] := true; asked[n][p] := false; end;
  rule "asks" progress[n] = Acquiring & need[n][p] != No & !claim[n][p] & !asked[n][p]
      & !suits(n, p) ==>
  begin
    if state[place[n]][p] = Absent | state[place[n]][p] = Retained then
        state[place[n]][p] := Taking; end;
    asked[n][p] := true; request[n][p] := need[n][p];
    assert asks[n][p] < 7 "livelock: an extent is asked for again and again";
    assert n > 0 | asks[n][p] < 1 "the oldest operation asks twice for an extent";
    asks[n][p] := asks[n][p] + 1;
  end;
  rule "a Get that no operation sends" gets > 0 & progress[n] != Unsent & request[n][p] = No
      & (progress[n] = Complete | need[n][p] != No) ==>
  begin
    gets := gets - 1;
    if progress[n] = Sent & BROKEN != 14 then hint[n][p] := need[n][p];
    else request[n][p] := (progress[n] = Complete) ? Own : need[n][p]; end;
  end;
end;

-- home ---------------------------------------------------------------------------------------
ruleset n: operation; p: extent do
  rule "home opens a transaction" phase[p] = Rest & request[n][p] != No
      & (BROKEN = 13 | n <= urged[p]) ==>
  begin
    if urged[p] = n then urged[p] := N; end;
    if progress[n] = Complete then request[n][p] := No;
    elsif owner[p] = place[n] & request[n][p] = Shared_ then request[n][p] := No;
    else
      served[p] := n; acting[p] := n; taker[p] := place[n]; taken[p] := request[n][p];
      request[n][p] := No;
      phase[p] := Yielding;
      if taken[p] = Own then
        for a: agent do if replica[a][p] & a != taker[p] then recalled[a][p] := true; end; end;
        if any_recalled(p) & BROKEN != 4 then phase[p] := Recalling; end;
      end;
    end;
  end;
  rule "home opens a hint" phase[p] = Rest & hint[n][p] != No
      & !exists m: operation do request[m][p] != No end ==>
  begin
    if progress[n] != Complete & owner[p] != place[n] & (hint[n][p] = Shared_
        | !any_replica(p)) then
      served[p] := n; ahead[p] := true; taker[p] := place[n]; taken[p] := hint[n][p];
      phase[p] := Yielding;
    end;
    hint[n][p] := No;
  end;
  rule "home urges" BROKEN != 3 & (phase[p] = Recalling | phase[p] = Yielding)
       & request[n][p] != No & n < acting[p] & progress[n] != Complete ==>
  begin acting[p] := n; urged[p] := n; end;
end;
ruleset p: extent do
  rule "acks are in" phase[p] = Recalling & !any_recalled(p) ==> begin phase[p] := Yielding; end;
  rule "Done" phase[p] = Arrived ==>
  begin
    if taken[p] = Own then
      if BROKEN != 2 & owner[p] < A then
        assert !release[owner[p]][p] "Release slot";
        release[owner[p]][p] := true;
      elsif owner[p] = A then drop(A, p); end;
      owner[p] := taker[p];
      for a: agent do if BROKEN != 4 then replica[a][p] := false; end; end;
    else replica[taker[p]][p] := true; end;
    close_transaction(p);
  end;
end;

-- agents: giving -----------------------------------------------------------------------------
ruleset p: extent do
  rule "upgrade" phase[p] = Yielding & taker[p] = owner[p] & !any_recalled(p) ==>
  begin
    state[owner[p]][p] := Owned; arrive(owner[p], p, served[p], Own);
    for a: agent do replica[a][p] := false; end;
    close_transaction(p);
  end;
  rule "a Yield waits" BARS = 1 & phase[p] = Yielding & !held[p] & taker[p] != owner[p]
      & !may_go(owner[p], p, acting_age(p), taken[p] = Shared_) ==>
  begin held[p] := true; end;
  rule "give" phase[p] = Yielding & taker[p] != owner[p]
      & may_go(owner[p], p, acting_age(p), taken[p] = Shared_) ==>
  begin
    copy_message(GYield, p, owner[p]);
    wound(owner[p], p, acting_age(p), taken[p] = Shared_);
    if taken[p] = Own then state[owner[p]][p] := Given; else state[owner[p]][p] := OwnedShared; end;
    phase[p] := OnItsWay; held[p] := false;
    if BROKEN = 2 & taken[p] = Own & owner[p] < A then release[owner[p]][p] := true; end;
  end;
  rule "a hint finds the extent claimed" phase[p] = Yielding & ahead[p]
      & !may_go(owner[p], p, acting_age(p), taken[p] = Shared_)
      & (acting[p] < N | !exists m: operation do place[m] = owner[p] & progress[m] = Submitted
          & need[m][p] != No end) & !any_recalled(p) ==>
  begin
    if state[owner[p]][p] = OwnedShared & !any_replica(p) then state[owner[p]][p] := Owned; end;
    close_transaction(p);
  end;
  rule "Ready" phase[p] = OnItsWay ==>
  begin
    copy_message(GReady, p, taker[p]);
    if !(BROKEN = 9 & (state[taker[p]][p] = Taking | state[taker[p]][p] = Retained)
        & bytes[taker[p]][p] != 0) then
      if bytes[taker[p]][p] != bytes[owner[p]][p] then
        assert state[owner[p]][p] = Given | state[owner[p]][p] = OwnedShared "the bytes are gone";
      end;
      bytes[taker[p]][p] := bytes[owner[p]][p];
    end;
    if release[taker[p]][p] then release[taker[p]][p] := false; late_release[taker[p]][p] := true;
    end;
    if taken[p] = Shared_ then
      state[taker[p]][p] := Shared; arrive(taker[p], p, served[p], Shared_); phase[p] := Arrived;
    else state[taker[p]][p] := Owned; arrive(taker[p], p, served[p], Own); phase[p] := Arrived; end;
  end;
end;
ruleset a: agent; p: extent do
  rule "Invalidate" recalled[a][p] & (may_go(a, p, acting_age(p), false) | (BROKEN = 8
      & !exists m: operation do progress[m] = Submitted & place[m] = a & need[m][p] != No end)) ==>
  begin
    copy_message(GInv, p, a);
    recalled[a][p] := false; replica[a][p] := false;
    if state[a][p] = Shared then
      wound(a, p, acting_age(p), false);
      leave_frame(a, p);
    end;
  end;
  rule "Release" release[a][p] ==>
  begin
    copy_message(GRelease, p, a);
    release[a][p] := false;
    if state[a][p] = Given then leave_frame(a, p); end;
  end;
  rule "late Release" late_release[a][p] ==>
  begin late_release[a][p] := false; if BROKEN = 10 & state[a][p] = Given then leave_frame(a, p);
  end; end;
end;
-- duplicated messages: ignored by their transaction number; BROKEN 11 looks at the state only
rule "duplicate" copied != GNone ==>
begin
  if BROKEN = 11 then
    switch copied
      case GYield: if state[copied_at][copied_extent] = Owned then
          state[copied_at][copied_extent] := Given; end;
      case GReady: if state[copied_at][copied_extent] = Taking then
          state[copied_at][copied_extent] := Owned; end;
      case GRelease: if state[copied_at][copied_extent] = Given then
          leave_frame(copied_at, copied_extent); end;
      case GInv: if state[copied_at][copied_extent] = Shared then
          leave_frame(copied_at, copied_extent); end;
    end;
  end;
  copied := GNone; undefine copied_extent; copied_at := 0; dups := dups - 1;
end;

rule "the message is not duplicated" copied != GNone ==> begin copied := GNone;
    undefine copied_extent; copied_at := 0; end;

rule "all is quiet" forall n: operation do progress[n] = Complete end & forall p: extent do
    phase[p] = Rest end ==> begin end;

startstate
var k: 0..P;
begin
  k := 0; gets := GETS; dups := DUPS; copied := GNone; undefine copied_extent; copied_at := 0;
  for n: operation do
    progress[n] := Unsent; place[n] := 0;
    for p: extent do
      need[n][p] := No; claim[n][p] := false; asked[n][p] := false; asks[n][p] := 0;
      request[n][p] := No; hint[n][p] := No;
    end;
  end;
  for p: extent do
    version[p] := 0; urged[p] := N; close_transaction(p);
    for a: agent do
      state[a][p] := Absent; bytes[a][p] := 0; replica[a][p] := false; recalled[a][p] := false;
      release[a][p] := false; late_release[a][p] := false;
    end;
    if INIT = 0 then owner[p] := A; elsif INIT = 1 then owner[p] := 0; else owner[p] := k % A; end;
    state[owner[p]][p] := Owned;
    if k < P then k := k + 1; end;
  end;
end;

invariant "one writer, no reader beside it"
  forall p: extent do forall a: agent do forall b: agent do
    (a != b & state[a][p] = Owned) -> !usable(state[b][p]) end end end;
invariant "what is mapped is current"
  forall p: extent do forall a: agent do usable(state[a][p]) -> bytes[a][p] = version[p] end end;
invariant "no extent is lost"
  forall p: extent do exists a: agent do
    (state[a][p] = Owned | state[a][p] = OwnedShared | state[a][p] = Given)
        & bytes[a][p] = version[p] end end;
invariant "a claim is on a mapped extent"
  forall n: operation do forall p: extent do claim[n][p] -> need[n][p] != No & suits(n, p) end end;
invariant "who has asked waits for the extent"
  forall n: operation do forall p: extent do asked[n][p] -> state[place[n]][p] != Absent end end;
liveness "all operations complete" forall n: operation do progress[n] = Complete end;

-- What lies on disk: the program's files, cut into prose, regions and plain code, the chapters' fences, and who shows what.
local M = { faults = {}, files = {}, chapters = {}, regions = {}, anchors = {}, terms = {}, figures = {} }

-- A fault ends the build. A lack does too, unless the book is a draft.
local function report(kind, file, line, message)
  M.faults[#M.faults + 1] = { kind = kind, text = ('%s:%d: %s'):format(file, line, message) }
end
function M.fault(file, line, message) report('fault', file, line, message) end
function M.lack(file, line, message) report('lack', file, line, message) end

function M.read(path)
  local f = io.open(path, 'rb')
  if not f then return nil end
  local text = f:read('a')
  f:close()
  return text
end

function M.lines(text)
  local list = {}
  for line in (text:gsub('\r', '') .. (text:sub(-1) == '\n' and '' or '\n')):gmatch('(.-)\n') do list[#list + 1] = line end
  return list
end

function M.slug(text)
  return (text:lower():gsub("['’`*]", ''):gsub('[^%w\128-\255_.]+', '-'):gsub('^[-.]+', ''):gsub('[-.]+$', ''))
end

-- A file's lines by kind: code, prose (inside /*: ... :*/), mark (a region's begin or end), blank.
local function source(name)
  local text = M.read(name)
  if not text then return end
  local f = { name = name, lines = M.lines(text), kind = {}, blocks = {}, block = {}, regions = {}, region = {}, owner = {} }
  local mark = (name == 'Makefile' or name:find('%.sh$')) and '#' or '//'
  local prose, region
  for n, line in ipairs(f.lines) do
    local opens, closes = line:match('^%s*' .. mark .. '> ([%w_-]+)%s*$'), line:match('^%s*' .. mark .. '< ([%w_-]+)%s*$')
    if not prose and line:find('^%s*/%*:') then
      prose = { file = f, first = n }
      f.blocks[#f.blocks + 1] = prose
    end
    if prose then
      f.kind[n], f.block[n] = 'prose', prose
      if line:find(':%*/%s*$') then
        prose.last = n
        prose.text = table.concat(f.lines, '\n', prose.first, n):gsub('^%s*/%*: ?', '   '):gsub('%s*:%*/%s*$', '')
        prose = nil
      end
    elseif opens then
      f.kind[n] = 'mark'
      if region then region.last = n - 1 end
      if region then M.fault(name, n, ('region %s begins inside region %s: regions do not nest'):format(opens, region.name)) end
      if M.regions[opens] then
        M.fault(name, n, ('region %s exists already: %s:%d'):format(opens, M.regions[opens].file.name, M.regions[opens].first - 1))
      end
      region = { name = opens, file = f, first = n + 1 }
      M.regions[opens] = region
      f.regions[#f.regions + 1] = region
    elseif closes then
      f.kind[n] = 'mark'
      if region and region.name == closes then region.last = n - 1
      else M.fault(name, n, ('region %s ends here and did not begin'):format(closes)) end
      region = nil
    else
      f.kind[n] = line:find('%S') and 'code' or 'blank'
    end
    if region and f.kind[n] ~= 'mark' then f.region[n] = region end
  end
  if prose then
    M.fault(name, prose.first, 'this prose has no end')
    prose.last, prose.text = #f.lines, table.concat(f.lines, '\n', prose.first):gsub('^%s*/%*: ?', '   ')
  end
  if region then
    M.fault(name, region.first - 1, ('region %s has no end'):format(region.name))
    region.last = #f.lines
  end
  return f
end

-- A chapter's fences, headings and anchors, with their lines. Its text is not parsed here, only looked through.
local function chapter(name)
  local path = 'chapters/' .. name .. '.md'
  local text = M.read(path)
  local c = { name = name, path = path, number = name:match('^0?([%w]+)-'), title = name, exists = text ~= nil, fences = {}, text = text or '' }
  if not text then
    M.lack(path, 1, 'this chapter does not exist yet')
    return c
  end
  local function anchor(id, n, what)
    local old = M.anchors[id]
    if old and not (old.chapter == c and old.line == n) then
      M.fault(path, n, ('anchor %s exists already: %s:%d'):format(id, old.path, old.line))
    end
    M.anchors[id] = { chapter = c, path = path, line = n, what = what }
  end
  local inside, previous
  for n, line in ipairs(M.lines(text)) do
    local ticks, rest = line:match('^%s*(```+)(.*)$')
    if not ticks then ticks, rest = line:match('^%s*(~~~+)(.*)$') end
    if inside then
      if ticks and ticks:sub(1, #inside) == inside and not rest:find('%S') then inside = nil end
    elseif ticks and not rest:find('`') then
      inside = ticks
      local how, what
      for _, h in ipairs { 'region', 'recall', 'file', 'rest', 'solution' } do
        local w = rest:match('[%s{]' .. h .. '="?([^%s}"]+)')
        if w then how, what = h, w end
      end
      if how then
        local fence = { how = how, what = what, chapter = c, line = n, noprose = rest:find('[%s.]noprose') ~= nil }
        c.fences[#c.fences + 1] = fence
      end
    else
      local bare = line:gsub('`[^`]*`', '')
      local level, title = line:match('^(#+)%s+(.-)%s*$')
      if level then
        local id = title:match('{[^}]*#([^%s}]+)')
        local plain = title:gsub('%s*{[^}]*}%s*$', '')
        if not id and #level == 1 then id = name end
        if not id then anchor(c.name:match('^%w+') .. '-' .. M.slug(plain), n, { kind = 'section', title = plain }) end
        if id then anchor(id, n, { kind = 'section', title = plain }) end
        if #level == 1 and c.title == name then c.title, c.id = plain, id or name end
      elseif bare:find('{[^}]*#') then
        for id in bare:gmatch('{[^}]-#([%w_.-]+)') do
          if id:find('^fig%-') then
            c.figures = (c.figures or 0) + 1
            anchor(id, n, { kind = 'figure', title = ('Figure %s.%d'):format(c.number, c.figures) })
          else
            anchor(id, n, { kind = 'place' })
          end
        end
      end
      if name:find('glossary') and line:find('^:%s') and previous then
        local id = 'term-' .. M.slug(previous)
        anchor(id, n - 1, { kind = 'term', title = previous })
        M.terms[id] = { chapter = c, line = n, text = line:gsub('^:%s+', '') }
        M.last_term = M.terms[id]
      elseif name:find('glossary') and line:find('^%s+%S') and M.last_term then
        M.last_term.text = M.last_term.text .. ' ' .. line:gsub('^%s+', '')
      elseif not line:find('%S') then
        M.last_term = nil
      end
      if line:find('%S') then previous = line end
    end
  end
  return c
end

-- The prose that belongs to a region: the block that ends right above it.
function M.prose_above(region)
  local f, n = region.file, region.first - 2
  while n > 0 and f.kind[n] == 'blank' do n = n - 1 end
  return f.block[n]
end

local function claim(f, first, last, fence)
  local old
  for n = first, last do
    if f.kind[n] == 'code' or f.kind[n] == 'prose' then
      if f.owner[n] and f.owner[n] ~= fence then old = old or n else f.owner[n] = fence end
    end
  end
  if old then
    local before = f.owner[old]
    M.fault(fence.chapter.path, fence.line, ('%s:%d is shown already: %s:%d'):format(f.name, old, before.chapter.path, before.line))
  end
end

-- Who shows which line. First the regions and the whole files, in the order of the book; then the rests take what is left.
local function share_out()
  for _, c in ipairs(M.chapters) do
    for _, fence in ipairs(c.fences) do
      if fence.how == 'region' or fence.how == 'recall' then
        local r = M.regions[fence.what]
        if not r then
          M.fault(c.path, fence.line, ('there is no region %s'):format(fence.what))
        elseif fence.how == 'region' then
          r.fence = r.fence or fence
          claim(r.file, r.first, r.last, fence)
          local above = M.prose_above(r)
          if above and fence.noprose then above.dropped = true
          elseif above then claim(r.file, above.first, above.last, fence) end
        end
      elseif fence.how == 'file' or fence.how == 'rest' then
        fence.file = M.files[fence.what]
        if not fence.file then M.fault(c.path, fence.line, ('there is no file %s among the program\'s'):format(fence.what))
        elseif fence.how == 'file' then claim(fence.file, 1, #fence.file.lines, fence) end
      end
    end
  end
  for _, c in ipairs(M.chapters) do
    for _, fence in ipairs(c.fences) do
      if fence.how == 'rest' and fence.file then
        local f = fence.file
        if f.rest then
          M.fault(c.path, fence.line, ('the rest of %s is shown already: %s:%d'):format(f.name, f.rest.chapter.path, f.rest.line))
        else
          f.rest = fence
          for n = 1, #f.lines do
            if not f.owner[n] and (f.kind[n] == 'code' or f.kind[n] == 'prose' and not f.block[n].dropped) then f.owner[n] = fence end
          end
        end
      end
    end
  end
  for _, f in ipairs(M.files) do
    for _, r in ipairs(f.regions) do
      r.fence = r.fence or f.owner[r.first]
      if r.fence then M.anchors['region-' .. r.name] = { chapter = r.fence.chapter, path = f.name, line = r.first, what = { kind = 'region', title = r.name } } end
    end
    for _, b in ipairs(f.blocks) do
      local owner, n = f.owner[b.first], b.first
      for line in (b.text .. '\n'):gmatch('(.-)\n') do
        local title = line:match('^%s*#+%s+(.-)%s*$')
        if title then
          local id = title:match('{[^}]*#([^%s}]+)') or f.name .. '-' .. M.slug(title)
          if owner then M.anchors[id] = { chapter = owner.chapter, path = f.name, line = n, what = { kind = 'section', title = title } } end
        end
        n = n + 1
      end
    end
  end
end

-- Lines of the program that no fence shows.
function M.unshown()
  for _, f in ipairs(M.files) do
    local first, last
    for n = 1, #f.lines + 1 do
      local kind = f.kind[n]
      local missing = kind and not f.owner[n] and (kind == 'code' or kind == 'prose' and not f.block[n].dropped)
      if missing then
        first, last = first or n, n
      elseif first and (not kind or f.owner[n]) then
        M.lack(f.name, first, (first == last and 'this line is' or 'lines %d to %d are'):format(first, last)
          .. ' nowhere in the book: ' .. f.lines[first]:sub(1, 60))
        first = nil
      end
    end
  end
end

-- What a fence shows, in order: blocks of prose, and runs of code that begin and end with their region.
function M.items(fence)
  local list, f, run = {}, nil, nil
  local function go(first, last)
    for n = first, last + 1 do
      local mine = n <= last and (f.owner[n] == fence or fence.how == 'recall')
      local kind = f.kind[n]
      if run and (not (mine or kind == 'blank') or n > last or f.region[n] ~= run.region or kind == 'mark' or kind == 'prose') then
        list[#list + 1] = run
        run = nil
      end
      if mine and kind == 'prose' and fence.how ~= 'recall' and n == f.block[n].first then list[#list + 1] = { prose = f.block[n] } end
      if mine and kind == 'code' then
        run = run or { file = f, first = n, region = f.region[n] }
        run.last = n
      end
    end
  end
  if fence.how == 'region' or fence.how == 'recall' then
    local r = M.regions[fence.what]
    if not r then return list end
    f = r.file
    local above = fence.how == 'region' and not fence.noprose and M.prose_above(r)
    if above and f.owner[above.first] == fence then list[1] = { prose = above } end
    go(r.first, r.last)
  else
    f = fence.file
    if f then go(1, #f.lines) end
  end
  return list
end

-- build/book/files, written by book.sh: `source NAME`, `chapter NAME`, a line each.
function M.load(list)
  for line in (M.read(list) or error('there is no ' .. list .. ': chapters/book.sh writes it')):gmatch('[^\n]+') do
    local what, name = line:match('^(%S+)%s+(.*)$')
    if what == 'source' then
      local f = source(name)
      if f then M.files[#M.files + 1], M.files[name] = f, f end
    end
  end
  for line in M.read(list):gmatch('[^\n]+') do
    local what, name = line:match('^(%S+)%s+(.*)$')
    if what == 'chapter' then
      local c = chapter(name)
      M.chapters[#M.chapters + 1], M.chapters[name] = c, c
      c.index = #M.chapters
    end
  end
  share_out()
end

return M

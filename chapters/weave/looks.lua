-- How listings, figures, notes and pages look: the blocks that the weave puts in their place.
local sources = require 'sources'
local M = {}

local function raw(text) return pandoc.RawBlock('html', text) end
local function escape(text) return (text:gsub('[&<>"]', { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' })) end
local function classed(...) return pandoc.Attr('', { ... }) end
local function prefix(chapter) return chapter.name:match('^%w+') end

local languages = { c = 'c', h = 'c', cu = 'cuda', cuh = 'cuda', sh = 'bash' }
local function language(name) return name == 'Makefile' and 'makefile' or languages[name:match('%.(%w+)$')] or 'text' end

local function named(chapter)
  return (chapter.number:find('^%d') and 'chapter ' or 'appendix ') .. chapter.number
end
local function linked(text, url) return pandoc.Link({ pandoc.Str(text) }, url) end
local function to_source(state, f, line)
  if state.epub then return pandoc.Str(f.name) end
  return pandoc.Link({ pandoc.Str(f.name) }, ('src/%s.html#L%d'):format(f.name, line), '', classed('src'))
end

-- What stands before a listing in its file: a region by its name, or a line.
local function precedes(state, item)
  local f, n = item.file, item.first - 1
  while n > 0 and f.kind[n] ~= 'code' do n = n - 1 end
  local r = f.region[n]
  if n == 0 then return { pandoc.Str 'opens the file' } end
  if not r or r == item.region then return { pandoc.Str(('after line %d'):format(n)) } end
  if not r.fence then return { pandoc.Str('after ' .. r.name) } end
  return { pandoc.Str 'after', pandoc.Space(), linked(r.name, state.url(r.fence.chapter, 'region-' .. r.name, state.chapter)) }
end

-- The last chapter before this one that showed lines of the same file.
local function since(state, f)
  local last
  for n = 1, #f.lines do
    local c = f.owner[n] and f.owner[n].chapter
    if c and c.index < state.chapter.index and (not last or c.index > last.index) then last = c end
  end
  return last
end

function M.listing(state, fence, item)
  local f, r = item.file, item.region
  local says, id, class = {}, '', { 'listing' }
  local block = ('L.%s.%d'):format(f.name:gsub('/', '-'), item.first)
  state.begun = state.begun or {}
  if fence.how == 'recall' then
    class[2] = 'recall'
    says[1] = { pandoc.Str 'seen before', r.fence and pandoc.Str ': ' or pandoc.Str '',
      r.fence and linked(named(r.fence.chapter), state.url(r.fence.chapter, 'region-' .. r.name, state.chapter)) or pandoc.Str '' }
    state.recalls = (state.recalls or 0) + 1
    block = ('L-recall-%s-%d'):format(prefix(state.chapter), state.recalls)
  else
    says[1] = precedes(state, item)
    local before = since(state, f)
    if before then says[2] = { pandoc.Str 'added since', pandoc.Space(), linked(named(before), state.url(before, nil, state.chapter)) }
    elseif not state.begun[f] then says[2] = { pandoc.Str 'first seen here' } end
    if r and not state.begun[r] then id = 'region-' .. r.name end
    state.begun[f] = true
    state.adds = state.adds or {}
    if not state.adds[f] then
      state.adds[#state.adds + 1] = f
      state.adds[f] = { first = item.first, lines = 0 }
    end
    state.adds[f].lines = state.adds[f].lines + item.last - item.first + 1
    if r then state.begun[r] = true end
  end
  local lines = item.first == item.last and ('line %d'):format(item.first) or ('lines %d–%d'):format(item.first, item.last)
  local caption = pandoc.List { pandoc.Span({ to_source(state, f, item.first) }, classed 'file'), pandoc.Space(), pandoc.Span({ pandoc.Str(lines) }, classed 'lines') }
  for _, x in ipairs(says) do
    caption:insert(pandoc.Space())
    caption:insert(pandoc.Span(x, classed 'says'))
  end
  return { pandoc.Div({
    pandoc.Div({ pandoc.Para(caption) }, classed 'caption'),
    pandoc.CodeBlock(table.concat(f.lines, '\n', item.first, item.last),
      state.epub and pandoc.Attr(block, { language(f.name) })
      or pandoc.Attr(block, { language(f.name), 'numberLines', 'lineAnchors' }, { startFrom = tostring(item.first) })),
  }, pandoc.Attr(id, class)) }
end

-- An SVG in the page, so that it takes the page's colours; in the EPUB, an image.
function M.figure(here, state, image, line)
  local name = image.src:match('^%.?%.?/?figures/([%w_-]+)%.svg$')
  if not name then
    sources.fault(here.file, line, ('%s is no figure: figures/NAME.svg is'):format(image.src))
    return nil
  end
  local alt = pandoc.utils.stringify(image.caption)
  if not alt:find('%S') then sources.fault(here.file, line, ('figure %s has no text that says what it shows'):format(name)) end
  local path = 'build/book/figures/' .. name .. '.svg'
  local svg = sources.read(path)
  if not svg then
    sources.lack(here.file, line, ('there is no figure %s: figures/make.sh has not made %s'):format(name, path))
    return pandoc.Para { pandoc.Emph { pandoc.Str('[figure ' .. name .. ']') } }
  end
  local id = image.identifier ~= '' and image.identifier or 'fig-' .. name
  local anchor = sources.anchors[id]
  local caption = pandoc.List { pandoc.Strong { pandoc.Str(anchor and anchor.what.title or 'Figure') } }
  local words = image.title:gsub('^fig:', '')
  if words ~= '' then
    caption:insert(pandoc.Space())
    caption:extend(pandoc.utils.blocks_to_inlines(pandoc.read(words, 'markdown').blocks))
  end
  local drawn
  if state.epub then
    drawn = { pandoc.Plain { pandoc.Image({ pandoc.Str(alt) }, path) } }
  else
    svg = svg:gsub('^%s*<%?xml.-%?>%s*', ''):gsub('<!DOCTYPE.->%s*', '')
      :gsub('<svg([^>]*)>', function(attributes)
        attributes = attributes:gsub('%s+role="[^"]*"', ''):gsub('%s+aria%-%w+="[^"]*"', '')
        return ('<svg role="img" aria-label="%s"%s>'):format(escape(alt), attributes)
      end, 1)
    -- A figure may stand in two chapters, and both on the whole book's page: its ids are the chapter's own.
    for own in svg:gmatch('%sid="([^"]+)"') do
      local plain, new = own:gsub('%p', '%%%0'), own .. '-' .. prefix(state.chapter)
      svg = svg:gsub('(%sid=")' .. plain .. '"', '%1' .. new .. '"'):gsub('#' .. plain .. '%f[^%w_-]', '#' .. new)
    end
    drawn = { raw('<div class="drawn">' .. svg .. '</div>') }
  end
  local out = pandoc.List { raw '<figure class="drawing">' }
  out:extend(drawn)
  out:extend { raw '<figcaption>', pandoc.Plain(caption), raw '</figcaption>', raw '</figure>' }
  return { pandoc.Div(out, pandoc.Attr(id, { 'figure' })) }
end

function M.solution(state, fence)
  local path = 'chapters/solutions/' .. fence.what .. '.patch'
  local text = sources.read(path)
  if not text then
    sources.lack(fence.chapter.path, fence.line, 'there is no ' .. path)
    return {}
  end
  return { raw('<details class="solution"><summary>A solution</summary>'),
    pandoc.CodeBlock(text:gsub('%s+$', ''), pandoc.Attr('code-solution-' .. fence.what, { 'diff' })), raw '</details>' }
end

-- What a chapter adds to the program, below its title: the files in the order of their listings, with the lines these have.
local function adds(state)
  local list = pandoc.List {}
  for _, f in ipairs(state.adds or {}) do
    local lines = state.adds[f].lines
    list:insert(pandoc.Str(#list > 0 and ', ' or 'Code in this chapter: '))
    list:insert(to_source(state, f, state.adds[f].first))
    list:insert(pandoc.Str((' (%d %s%s)'):format(lines, lines == 1 and 'line' or 'lines', since(state, f) and '' or ', first seen here')))
  end
  if #list > 0 then list:insert(pandoc.Str '.') end
  return #list > 0 and pandoc.Div({ pandoc.Para(list) }, classed 'adds') or nil
end

-- A table's columns take what they need, and not the shares that pandoc reads from its dashes. A cell of a few words stays on
-- one line, so that a table too wide scrolls rather than breaks every word.
function M.columns(t)
  for i, spec in ipairs(t.colspecs) do t.colspecs[i] = { spec[1] } end
  local longest = {}
  for _, row in ipairs(t.head.rows or t.head[2]) do
    for _, cell in ipairs(row.cells or row[2]) do
      if (utf8.len(pandoc.utils.stringify(cell.contents)) or 0) > 12 then cell.attr = pandoc.Attr('', { 'long' }) end
    end
  end
  local function each(f)
    for _, body in ipairs(t.bodies) do
      for _, row in ipairs(body.body) do
        local cells = row.cells or row[2]
        for i, cell in ipairs(cells) do f(i, cell, utf8.len(pandoc.utils.stringify(cell.contents)) or 0) end
      end
    end
  end
  each(function(i, _, n) longest[i] = math.max(longest[i] or 0, n) end)
  each(function(i, cell)
    local n = longest[i]
    cell.attr = pandoc.Attr('', { n <= 22 and 'short' or n <= 60 and 'long' or 'longer' })
  end)
  return t
end

-- A page: footnotes become notes beside their line, and what is wide scrolls in itself.
function M.page(state, blocks)
  local out = pandoc.List(blocks)
  local title = out[1]
  if not title or title.t ~= 'Header' or title.level ~= 1 or title.identifier ~= state.chapter.name then
    sources.fault(state.chapter.path, 1, ('a chapter begins with `# Title {#%s}`'):format(state.chapter.name))
  else
    local sum = adds(state)
    if sum then out:insert(2, sum) end
  end
  out = pandoc.walk_block(pandoc.Div(out), { Table = M.columns }).content
  if state.epub then return out end
  local notes = 0
  local function beside(block) -- the mark stays, the note goes to the paragraph's end
    local after = pandoc.List {}
    block = pandoc.walk_block(block, {
      Note = function(note)
        notes = notes + 1
        local mark = pandoc.Span({ pandoc.Str(tostring(notes)) }, classed 'ref')
        local text = pandoc.List { mark }
        text:extend(pandoc.utils.blocks_to_inlines(note.content, { pandoc.LineBreak() }))
        after:insert(pandoc.Span(text, pandoc.Attr('', { 'note' }, { role = 'note' })))
        return mark
      end,
    })
    block.content:extend(after)
    return block
  end
  return pandoc.walk_block(pandoc.Div(out), {
    Para = beside, Plain = beside,
    Table = function(t) return pandoc.Div({ t }, pandoc.Attr('', { 'scroll' }, { tabindex = '0', role = 'group', ['aria-label'] = 'table' })) end,
  }).content
end

-- A file of the program by itself, with a number and an anchor for every line.
function M.source(f)
  local shown = pandoc.List {}
  local up = ('../'):rep(select(2, f.name:gsub('/', '')) + 1)
  local seen = {}
  for n = 1, #f.lines do
    local c = f.owner[n] and f.owner[n].chapter
    if c and not seen[c] then
      seen[c] = true
      shown:insert(pandoc.Str(#shown > 0 and ', ' or 'Shown in '))
      shown:insert(linked(named(c), up .. c.name .. '.html'))
    end
  end
  return pandoc.Pandoc({
    pandoc.Header(1, { pandoc.Code(f.name) }),
    pandoc.Para(#shown > 0 and shown or { pandoc.Str 'Shown in no chapter' }),
    pandoc.Div({ pandoc.CodeBlock(table.concat(f.lines, '\n'), pandoc.Attr('L', { language(f.name), 'numberLines', 'lineAnchors' }, { startFrom = '1' })) }, classed 'listing'),
  }, M.meta { source = up, chapter = { title = f.name, name = f.name } })
end

-- The page that book.sh fills with all chapters.
function M.whole() return pandoc.Pandoc({}, M.meta { chapter = { title = 'The whole book', name = 'book' } }) end

-- What the template asks for: the contents, and the pages before and after.
function M.meta(state, sections)
  local c, list = state.chapter, pandoc.List {}
  local function page(other)
    return { file = other.name .. '.html', title = other.title, number = other.number }
  end
  local meta = { title = c.title, pagetitle = c.title == 'Tiles' and c.title or c.title .. ' · Tiles', lang = 'en', contents = list, root = state.source or '', source = state.source ~= nil }
  for _, other in ipairs(sources.chapters) do
    if other.exists then
      local entry = page(other)
      if other == c then
        entry.current = true
        entry.sections = sections
      end
      list:insert(entry)
    end
  end
  for way, step in pairs { previous = -1, next = 1 } do
    local other = c.index and sources.chapters[c.index + step]
    while other and not other.exists do other = sources.chapters[other.index + step] end
    if other then meta[way] = page(other) end
  end
  return meta
end

return M
